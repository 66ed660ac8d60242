"""Jobs in processes of their own: what they are asked, what binds them, what disturbs them."""
