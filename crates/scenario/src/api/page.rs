use mlua::AnyUserData;
use super::{Library, wrong};
use crate::html::Resource;
pub(super) fn add(_: &Library<'_>) -> mlua::Result<()> { Ok(()) }
pub(super) fn resources(_: &AnyUserData, _: &crate::assets::Options) -> mlua::Result<Vec<Resource>> { Err(wrong("not yet")) }
