//! Pages: `user:html(response)`, and what scripts ask of one.

use std::rc::Rc;

use mlua::{AnyUserData, IntoLua, Lua, LuaString, Table, UserData, UserDataMethods, Value};
use oroshi_client::form;
use oroshi_net::Endpoint;

use super::{Library, table_of, wrong};
use crate::assets::{Options, Resource};
use crate::html::{self, Encoding, HtmlError, Limits, Match, Method};
use crate::request::Spec;
use crate::response::Response;
use crate::settings::{fields, kind};
use crate::thread::{Thread, Wish};

/// A page, as scripts see it.
struct Page {
    page: html::Page,
    /// The URL of its response.
    url: Endpoint,
}

pub(super) fn add(library: &Library<'_>) -> mlua::Result<()> {
    library.add("html", |_, thread, response: Value| {
        let user = thread.user("html")?;
        let Value::UserData(response) = &response else {
            return Err(wrong(format!("html: expected a response; this is {}", kind(&response))));
        };
        let response = response.borrow::<Response>().map_err(|_| wrong("html: expected a response"))?;
        let learned = Rc::clone(thread.learned.borrow_mut().entry(user.step.get()).or_default());
        let content_type = response.header("Content-Type").map(String::from_utf8_lossy);
        let base = response.url().cloned().unwrap_or_else(|| thread.base.clone());
        let url = format!("{}://{}{}", base.scheme.as_str(), base.authority, base.target);
        let page = html::Page::new(response.body.clone(), content_type.as_deref(), &url, learned, Limits::default());
        Ok(Page { page: page.map_err(told)?, url: base })
    })?;
    library.add("submit", |lua, thread, (page, selector, given, options): (AnyUserData, LuaString, Value, Value)| {
        thread.user("submit")?;
        let page = page.borrow::<Page>().map_err(|_| wrong("submit: expected a page, as `user:html` returns it"))?;
        let selector = selector.to_string_lossy();
        let form = page.page.form(&selector).map_err(told)?;
        let form = form.ok_or_else(|| wrong(format!("submit: no form matches `{selector}`")))?;
        let given = match &given {
            Value::Nil => Vec::new(),
            given => fields("submit: the fields", given).map_err(wrong)?,
        };
        let mut pairs = form.fields;
        pairs.retain(|(name, _)| !given.iter().any(|(known, _)| known == name));
        pairs.extend(given);
        let options = table_of("submit", &options)?;
        let mut url = page.resolve(&form.action)?;
        let method = match form.method {
            Method::Get => "GET",
            Method::Post => "POST",
        };
        let mut text = String::new();
        form::encode(&mut text, pairs);
        if form.method == Method::Get {
            // A form replaces the query of its action (HTML, section 4.10.22.3).
            let path = url.target.split('?').next().unwrap_or_default().to_owned();
            url.target = format!("{path}?{text}");
        } else if form.encoding != Encoding::Urlencoded {
            return Err(wrong(format!(
                "submit: the form `{selector}` is not urlencoded: send it by user:post and multipart"
            )));
        }
        let mut spec =
            Spec::read(lua, method, url, options, &Value::Nil).map_err(|why| wrong(format!("submit: {why}")))?;
        if spec.body.is_some() {
            return Err(wrong("submit: the form is the body: expected no other; its fields are the third argument"));
        }
        if form.method == Method::Post {
            spec.content_type = Some("application/x-www-form-urlencoded".to_owned());
            spec.body = Some(text.into());
        }
        thread.wish.replace(Some(Wish::Request(Box::new(spec))));
        Ok(())
    })
}

/// Returns what a page needs.
pub(super) fn resources(thread: &Thread, page: &AnyUserData, options: &Options) -> mlua::Result<Vec<Resource>> {
    let page = page.borrow::<Page>().map_err(|_| wrong("assets: expected a page, as `user:html` returns it"))?;
    let found = page.page.resources(options.limit, options.lazy).map_err(|error| match error {
        HtmlError::Matches { max, .. } => {
            wrong(format!("assets: the page has more than {max} links, scripts and images"))
        }
        error => told(error),
    })?;
    let own = |url: &Endpoint| url.is_same_origin(&page.url) || url.is_same_origin(&thread.base);
    let mut resources = Vec::with_capacity(found.list.len());
    for resource in found.list {
        let url = page.resolve(&resource.url)?;
        // Servers of others are not what is measured.
        if own(&url) {
            resources.push(Resource { url });
        }
    }
    Ok(resources)
}

impl Page {
    /// Converts a URL of the page. On the page's own server it goes where the page came from.
    fn resolve(&self, url: &url::Url) -> mlua::Result<Endpoint> {
        self.url.join(url.as_str().as_bytes()).map_err(|why| wrong(format!("the URL `{url}`: {why}")))
    }
}

impl UserData for Page {
    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_method("text", |_, it, css: LuaString| it.page.text(&css.to_string_lossy()).map_err(told));
        methods.add_method("attr", |_, it, (css, name): (LuaString, LuaString)| {
            it.page.attr(&css.to_string_lossy(), &name.to_string_lossy()).map_err(told)
        });
        methods.add_method("has", |_, it, css: LuaString| it.page.has(&css.to_string_lossy()).map_err(told));
        methods.add_method("count", |_, it, css: LuaString| {
            it.page.count(&css.to_string_lossy()).map(|count| count as f64).map_err(told)
        });
        methods.add_method("inner", |lua, it, css: LuaString| {
            let inner = it.page.inner(&css.to_string_lossy()).map_err(told)?;
            inner.map(|inner| lua.create_string(inner)).transpose()
        });
        methods.add_method("all", |lua, it, css: LuaString| {
            let matches = it.page.all(&css.to_string_lossy()).map_err(told)?;
            let tables = matches.iter().map(|found| to_lua(lua, found)).collect::<mlua::Result<Vec<Table>>>()?;
            lua.create_sequence_from(tables)
        });
        methods.add_method("form", |lua, it, css: LuaString| {
            let Some(form) = it.page.form(&css.to_string_lossy()).map_err(told)? else { return Ok(Value::Nil) };
            let table = lua.create_table()?;
            table.raw_set("action", form.action.as_str())?;
            table.raw_set("method", if form.method == Method::Get { "GET" } else { "POST" })?;
            let fields = lua.create_table()?;
            for (name, value) in form.fields {
                fields.raw_set(name, value)?;
            }
            table.raw_set("fields", fields)?;
            table.into_lua(lua)
        });
    }
}

fn to_lua(lua: &Lua, found: &Match) -> mlua::Result<Table> {
    let table = lua.create_table_with_capacity(0, 4)?;
    table.raw_set("name", found.name.as_str())?;
    table.raw_set("text", found.text.as_str())?;
    table.raw_set("inner", lua.create_string(&found.inner)?)?;
    let attributes = lua.create_table_with_capacity(0, found.attributes.len())?;
    for (name, value) in &found.attributes {
        attributes.raw_set(name.as_str(), value.as_str())?;
    }
    table.raw_set("attrs", attributes)?;
    Ok(table)
}

fn told(error: HtmlError) -> mlua::Error {
    wrong(error)
}
