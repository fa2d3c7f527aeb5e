"""The status page as browsers get it: `page.html` and what it loads. Nothing is built from them."""
