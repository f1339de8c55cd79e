#[derive(Debug)]
pub(crate) struct Resource { pub(crate) url: oroshi_net::Endpoint }
