// The search box. MkDocs's own script needs a worker that fetches its index, which a page of a folder may not.
// This one loads the index as a script, and only once somebody searches.
document.addEventListener("DOMContentLoaded", () => {
  const box = document.getElementById("mkdocs-search-query");
  const results = document.getElementById("mkdocs-search-results");
  const site = base_url.replace(/\/?$/, "/");
  let ready = null;

  const load = (name) => new Promise((resolve, reject) => {
    const script = Object.assign(document.createElement("script"), { src: site + name, onload: resolve, onerror: reject });
    document.head.append(script);
  });

  // The first heading of a page is a section, too, with the same title.
  const isTitle = (page, pages) => {
    const [location, section] = page.location.split("#");
    return Boolean(section) && pages.get(location)?.title === page.title;
  };

  const prepare = async () => {
    await load("search/lunr.js");
    await load("search/index.js");
    const pages = new Map(searchIndex.docs.map((page) => [page.location, page]));
    const index = lunr(function () {
      this.ref("location");
      this.field("title", { boost: 10 });
      this.field("text");
      searchIndex.docs.filter((page) => !isTitle(page, pages)).forEach((page) => this.add(page));
    });
    return { index, pages };
  };

  const shorten = (text) => {
    const plain = text.replaceAll("\u00b6", "");
    return plain.length > 200 ? `${plain.slice(0, 200).replace(/\s+\S*$/, "")} \u2026` : plain;
  };

  // A section is named with its page.
  const show = (page, pages) => {
    const whole = pages.get(page.location.split("#")[0]);
    const textContent = whole && whole !== page ? `${whole.title}: ${page.title}` : page.title;
    const link = Object.assign(document.createElement("a"), { href: site + page.location, textContent });
    const heading = document.createElement("h3");
    const text = Object.assign(document.createElement("p"), { textContent: shorten(page.text) });
    const article = document.createElement("article");
    heading.append(link);
    article.append(heading, text);
    return article;
  };

  const search = async () => {
    const words = box.value.trim().split(/\s+/).filter((word) => word.length > 2);
    if (words.length === 0) {
      return results.replaceChildren();
    }
    ready ??= prepare();
    const { index, pages } = await ready;
    const found = index.query((query) => words.forEach((word) => {
      query.term(lunr.tokenizer(word), { boost: 10 });
      query.term(lunr.tokenizer(word), { wildcard: lunr.Query.wildcard.TRAILING });
    }));
    const articles = found.slice(0, 30).map((one) => show(pages.get(one.ref), pages));
    results.replaceChildren(...(articles.length ? articles : [results.dataset.noResultsText || "No results found"]));
  };

  box.addEventListener("input", search);
});
