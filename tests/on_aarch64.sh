#!/bin/sh
# Runs the demo and tests on aarch64 under qemu-user, in a Debian of its own without a compiler:
#
#     tests/on_aarch64.sh FOLDER [COMMAND ...]
#
# FOLDER, inside this repository, holds the wheel of llama-cpp-python for aarch64. QEMU_CPU=cortex-a76
# emulates that processor instead of one with all that qemu knows. It shows what works, not how fast.
# debootstrap wants root. The emulator is registered in a name space of its own (Linux 6.7): the
# system stays as it is.
set -eu
tree=$(cd "$(dirname "$0")/.." && pwd)
wheels=${1:?the folder of the wheel}
shift
here=$tree/build/aarch64
root=$here/root
for tool in qemu-aarch64-static debootstrap unshare; do
	PATH=$PATH:/usr/sbin command -v $tool >/dev/null || {
		echo "$tool is missing: apt install qemu-user-static debootstrap util-linux" >&2
		exit 1
	}
done

if ! [ -e "$here/ready" ]; then
	mkdir -p "$here"
	PATH=$PATH:/usr/sbin debootstrap --arch=arm64 --foreign --variant=minbase \
		--include=python3.11,python3-venv,make,ca-certificates bookworm "$root"
	# the packages' scripts are not needed, and would have to run under the emulator
	for package in "$root"/var/cache/apt/archives/*.deb; do
		dpkg-deb -x "$package" "$root"
	done
	rm -rf "$root/var/cache/apt/archives"
	mkdir -p "$root/edgespec" "$root/etc/ssl/certs"
	cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
	touch "$here/ready"
fi
cp /etc/resolv.conf "$root/etc/resolv.conf"

if [ $# -eq 0 ]; then
	set -- sh -c "make /root/venv/ready PYTHON=python3.11 VENV=/root/venv WHEELS=$wheels &&
		/root/venv/bin/python -m pip install --no-compile -e '.[dev]' &&
		/root/venv/bin/edgespec demo --size 64MiB -n 8 &&
		/root/venv/bin/python -m pytest -q -p no:cacheprovider -m 'not slow' tests/paging tests/memory \
			tests/gguf_runtime/test_invariant_products.py"
fi
export here tree
exec unshare --user --map-root-user --mount sh -ec '
	if mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc 2>/dev/null; then
		cat /usr/lib/binfmt.d/qemu-aarch64.conf >/proc/sys/fs/binfmt_misc/register
	fi
	for folder in proc sys dev; do
		mount --rbind /$folder "$here/root/$folder"
	done
	mount --bind "$tree" "$here/root/edgespec"
	exec chroot "$here/root" /usr/bin/env -i HOME=/root PATH=/usr/bin:/bin LANG=C.UTF-8 ${QEMU_CPU:+QEMU_CPU=$QEMU_CPU} \
		SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt PIP_CERT=/etc/ssl/certs/ca-certificates.crt \
		sh -c "cd /edgespec && exec \"\$@\"" sh "$@"' sh "$@"
