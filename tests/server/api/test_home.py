"""The page at the daemon's own address."""

import re

from tests.server.support import server_config


def test_a_browser_is_told_what_this_is_and_where_to_go(deployment) -> None:
    page = deployment.http.get("/", headers={"accept": "text/html"})
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "penstock" in page.text
    for model in deployment.http.get("/v1/models").json()["data"]:
        assert model["id"] in page.text
    links = re.findall(r'href="([^"]+)"', page.text)
    assert {"docs", "v1/models"} <= set(links)
    for link in links:
        assert deployment.http.get(f"/{link}").status_code == 200
    assert "://" not in page.text


def test_a_models_name_is_text_and_no_markup(builder) -> None:
    deployment = builder.open(server_config(builder.model("<b>&amp;", "generate")))
    page = deployment.http.get("/").text
    assert "&lt;b&gt;&amp;amp;" in page
    assert "<b>&amp;</b>" not in page


def test_clients_that_know_only_an_address_still_embed(deployment) -> None:
    assert deployment.post("/", {"inputs": "a"}).status_code == 200
