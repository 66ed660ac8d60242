"""A window that continues text without blocking the user interface.

python window.py big.gguf small.gguf
"""

import queue
import sys
import threading
import tkinter

import edgespec


class Window(tkinter.Tk):
    def __init__(self, session: edgespec.Session) -> None:
        super().__init__()
        self.session = session
        self.generation: edgespec.Generation | None = None
        self.pieces: queue.Queue[str | None] = queue.Queue()
        self.text = tkinter.Text(self, width=80, height=24, wrap="word")
        self.text.pack(fill="both", expand=True)
        tkinter.Button(self, text="Continue", command=self.go_on).pack(side="left")
        tkinter.Button(self, text="Stop", command=self.stop).pack(side="left")
        self.protocol("WM_DELETE_WINDOW", self.leave)
        self.show()

    def go_on(self) -> None:
        if self.generation is None:
            prompt = self.text.get("1.0", "end-1c")
            self.generation = self.session.stream(prompt, max_tokens=200)
            threading.Thread(target=self.write, args=(self.generation,)).start()

    def write(self, generation: edgespec.Generation) -> None:
        try:
            for event in generation:
                self.pieces.put(event.text)
        except edgespec.EdgespecError as error:
            self.pieces.put(f"\n[{error}]\n")
        self.pieces.put(None)

    def show(self) -> None:
        while not self.pieces.empty():
            piece = self.pieces.get()
            if piece is None:
                self.generation = None
            else:
                self.text.insert("end", piece)
        self.after(30, self.show)

    def stop(self) -> None:
        if self.generation is not None:
            self.generation.cancel()

    def leave(self) -> None:
        self.session.close()  # ends what runs, and waits for it
        self.destroy()


if __name__ == "__main__":
    settings = edgespec.LoadSettings(model=sys.argv[1], draft=sys.argv[2])
    with edgespec.load(settings) as session:
        Window(session).mainloop()
