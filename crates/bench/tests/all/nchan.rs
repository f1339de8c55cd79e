//! Subscriptions at nginx's nchan module, a hub that others wrote: everything comes, in each of the three ways.

use crate::support::HANG;
use oroshi_bench::Draft as Base;
use oroshi_bench::push::{Draft, Mode, Publishing, Record, run};
use oroshi_testkit::nginx::{Nginx, Setup, load_module};

/// nginx with its module nchan.
struct Nchan(Nginx);

impl Nchan {
    /// Starts one, or notes that `test` is left out.
    fn start(test: &str) -> Option<Self> {
        let load = load_module(test, "ngx_nchan_module", "libnginx-mod-nchan")?;
        Setup { workers: 1, main: &load, http: SERVER, ..Setup::default() }.start(test).map(Self)
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.0.tcp)
    }
}

const SERVER: &str = "server {
    listen @TCP@;
    location = /pub { nchan_publisher; nchan_channel_id all; }
    location = /sub { nchan_subscriber; nchan_channel_id all; nchan_subscriber_first_message newest; }
    location = /raw { nchan_subscriber http-raw-stream; nchan_channel_id all; nchan_subscriber_first_message newest; }
}";

#[test]
fn every_message_comes_to_everybody() {
    let Some(nchan) = Nchan::start("every_message_comes_to_everybody") else { return };
    for (mode, path) in [(Mode::Ws, "sub"), (Mode::Sse, "sub"), (Mode::Stream, "raw")] {
        let publish = Publishing { url: nchan.url("pub").parse().unwrap(), headers: Vec::new(), publishers: 4 };
        let base = Base {
            urls: vec![nchan.url(path).parse().unwrap()],
            connections: 100,
            requests: Some(200),
            timeout: HANG,
            ..Base::default()
        };
        let draft = Draft { base, mode, publish: Some(publish), ..Draft::default() };
        let record: Record = run(draft.plan().unwrap(), &mut ()).unwrap();
        let deliveries = &record.deliveries;
        assert_eq!((record.subscriptions.opened, deliveries.delivered), (100, 20_000), "{mode:?}: {deliveries:?}");
        assert_eq!((deliveries.lost, deliveries.duplicated, deliveries.reordered), (0, 0, 0), "{mode:?}");
        assert!(record.server_cpu_us_per_delivery().is_some_and(|us| us > 0.0), "{:?}", record.server_unknown);
        assert!(record.idle.is_some_and(|idle| idle.rss_after_bytes >= 1), "its memory is known");
    }
}
