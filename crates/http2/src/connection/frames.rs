//! Received frames other than DATA and header blocks.

use super::{Connection, Phase, Role, Step, reference};
use crate::event::Event;
use crate::frame::{self, FrameHead, MAX_FRAME_BYTES, MAX_WINDOW, flag, kind, setting};
use crate::head::HeadBuffer;
use crate::stream::{self, Closed};
use crate::{Defect, ErrorCode};

/// The greatest SETTINGS_MAX_FRAME_SIZE (RFC 9113 section 6.5.2).
const MOST_FRAME_BYTES: u32 = (1 << 24) - 1;

impl Connection {
    /// Handles a whole frame.
    pub(super) fn frame<'i>(
        &mut self,
        head: FrameHead,
        payload: &'i [u8],
        heads: &mut HeadBuffer,
        out: &mut Vec<u8>,
    ) -> Result<Option<Step<'i>>, Defect> {
        match head.kind {
            kind::HEADERS => self.headers_frame(head, payload, heads, out),
            kind::CONTINUATION => self.continuation_frame(head, payload, heads, out),
            kind::WINDOW_UPDATE => self.window_update_frame(head, payload, out),
            kind::RST_STREAM => self.reset_frame(head, payload),
            kind::SETTINGS => self.settings_frame(head, payload, out),
            kind::PING => self.ping_frame(head, payload, out),
            kind::GOAWAY => self.goaway_frame(head, payload),
            kind::PRIORITY => self.priority_frame(head, payload, out),
            kind::PUSH_PROMISE => Err(Defect::PushPromise),
            // RFC 9113 section 5.5: unknown types are ignored.
            _ => self.count_idle_frame().map(|()| None),
        }
    }

    fn window_update_frame(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Step<'static>>, Defect> {
        let increment = frame::number(payload).filter(|_| payload.len() == 4).ok_or(Defect::BadFrameSize)?;
        self.count_idle_frame()?;
        if head.stream == 0 {
            if increment == 0 {
                return Err(Defect::ZeroIncrement);
            }
            self.send_window += i64::from(increment);
            if self.send_window > i64::from(MAX_WINDOW) {
                return Err(Defect::WindowOverflow);
            }
            let opens = std::mem::take(&mut self.blocked);
            return Ok(opens.then_some(Step::Event(Event::WindowOpen { stream: None })));
        }
        let Some(stream) = self.streams.get_mut(head.stream) else {
            // A closed stream's update can cross our last frame.
            return if self.is_unopened(head.stream) { Err(Defect::IdleStream) } else { Ok(None) };
        };
        if increment == 0 {
            return self.stream_error(head.stream, Defect::ZeroIncrement, out);
        }
        let Some(window) = stream.send_window.checked_add(increment as i32) else {
            return self.stream_error(head.stream, Defect::WindowOverflow, out);
        };
        stream.send_window = window;
        if !stream.is(stream::BLOCKED) || window <= 0 {
            return Ok(None);
        }
        Ok(Some(Step::Event(Event::WindowOpen { stream: Some(reference(stream)) })))
    }

    fn reset_frame(&mut self, head: FrameHead, payload: &[u8]) -> Result<Option<Step<'static>>, Defect> {
        let code = payload.first_chunk::<4>().filter(|_| payload.len() == 4).ok_or(Defect::BadFrameSize)?;
        if head.stream == 0 {
            return Err(Defect::BadStreamId);
        }
        let Some(stream) = self.streams.remove(head.stream) else {
            return if self.is_unopened(head.stream) {
                Err(Defect::IdleStream)
            } else {
                self.count_idle_frame().map(|()| None)
            };
        };
        self.recent.push(head.stream, Closed::ByPeer);
        if self.role == Role::Server {
            self.count_reset()?;
        }
        let code = ErrorCode(u32::from_be_bytes(*code));
        Ok(Some(Step::Event(Event::Reset { stream: reference(&stream), code, defect: None })))
    }

    fn settings_frame(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Step<'static>>, Defect> {
        if head.stream != 0 {
            return Err(Defect::BadStreamId);
        }
        if head.has(flag::ACK) {
            if !payload.is_empty() {
                return Err(Defect::BadFrameSize);
            }
            return self.settings_acknowledged().map(|()| None);
        }
        if !payload.len().is_multiple_of(6) {
            return Err(Defect::BadFrameSize);
        }
        self.count_answered_frame()?;
        let window_before = self.peer.stream_window;
        for (setting, value) in frame::settings(payload) {
            self.setting(setting, value)?;
        }
        // Once per frame, however often the frame repeats the setting.
        self.change_send_windows(window_before)?;
        self.phase = Phase::Open;
        frame::write_settings_ack(out);
        Ok(Some(Step::Event(Event::Settings)))
    }

    fn setting(&mut self, setting: u16, value: u32) -> Result<(), Defect> {
        match setting {
            setting::HEADER_TABLE_SIZE => self.encoder.set_peer_table_bytes(value as usize),
            // RFC 9113 section 6.5.2: a server must not enable it; a client may, and this server never pushes.
            setting::ENABLE_PUSH if value > 1 || value == 1 && self.role == Role::Client => {
                return Err(Defect::BadSetting);
            }
            setting::MAX_CONCURRENT_STREAMS => self.peer.streams = value,
            setting::INITIAL_WINDOW_SIZE if value > MAX_WINDOW => return Err(Defect::WindowSettingTooLarge),
            setting::INITIAL_WINDOW_SIZE => self.peer.stream_window = value,
            setting::MAX_FRAME_SIZE if !(MAX_FRAME_BYTES as u32..=MOST_FRAME_BYTES).contains(&value) => {
                return Err(Defect::BadSetting);
            }
            setting::MAX_FRAME_SIZE => self.peer.frame_bytes = value,
            setting::MAX_HEADER_LIST_SIZE => self.peer.head_bytes = value,
            // RFC 8441 section 3: never back to 0.
            setting::ENABLE_CONNECT_PROTOCOL if value > 1 || value == 0 && self.peer.extended_connect => {
                return Err(Defect::BadSetting);
            }
            setting::ENABLE_CONNECT_PROTOCOL => self.peer.extended_connect = value == 1,
            _ => {}
        }
        Ok(())
    }

    /// Moves the windows of open streams with the setting (RFC 9113 section 6.9.2). They can become negative.
    fn change_send_windows(&mut self, before: u32) -> Result<(), Defect> {
        let change = i64::from(self.peer.stream_window) - i64::from(before);
        if change == 0 {
            return Ok(());
        }
        for stream in self.streams.iter_mut() {
            let window = i64::from(stream.send_window) + change;
            stream.send_window = i32::try_from(window).map_err(|_| Defect::WindowOverflow)?;
        }
        Ok(())
    }

    /// The peer has applied our settings.
    fn settings_acknowledged(&mut self) -> Result<(), Defect> {
        self.settings_unacknowledged =
            self.settings_unacknowledged.checked_sub(1).ok_or(Defect::UnexpectedSettingsAck)?;
        self.decoder.set_allowed(self.config.table_bytes as usize);
        let window = self.config.stream_window.min(MAX_WINDOW) as i32;
        let change = window - self.receive_initial;
        self.receive_initial = window;
        for stream in self.streams.iter_mut() {
            stream.receive_window = stream.receive_window.saturating_add(change);
        }
        Ok(())
    }

    fn ping_frame(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Step<'static>>, Defect> {
        if head.stream != 0 {
            return Err(Defect::BadStreamId);
        }
        let data = <[u8; 8]>::try_from(payload).map_err(|_| Defect::BadFrameSize)?;
        self.count_answered_frame()?;
        if head.has(flag::ACK) {
            return Ok(Some(Step::Event(Event::Pong { data })));
        }
        frame::write_ping(out, data, true);
        Ok(None)
    }

    fn goaway_frame<'i>(&mut self, head: FrameHead, payload: &'i [u8]) -> Result<Option<Step<'i>>, Defect> {
        if head.stream != 0 {
            return Err(Defect::BadStreamId);
        }
        let (Some(last_stream), Some((&[_, _, _, _, a, b, c, d], debug))) =
            (frame::number(payload), payload.split_first_chunk::<8>())
        else {
            return Err(Defect::BadFrameSize);
        };
        self.count_answered_frame()?;
        // Later ones can only lower it (RFC 9113 section 6.8).
        let last_stream = self.goaway_received.map_or(last_stream, |before| before.min(last_stream));
        self.goaway_received = Some(last_stream);
        let code = ErrorCode(u32::from_be_bytes([a, b, c, d]));
        Ok(Some(Step::Event(Event::GoAway { last_stream, code, debug })))
    }

    /// Priorities are ignored (RFC 9113 section 5.3.2), mistakes are not.
    fn priority_frame(
        &mut self,
        head: FrameHead,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<Step<'static>>, Defect> {
        if head.stream == 0 {
            return Err(Defect::BadStreamId);
        }
        self.count_idle_frame()?;
        let defect = match frame::number(payload).filter(|_| payload.len() == 5) {
            None => Defect::BadFrameSize,
            Some(dependency) if dependency == head.stream => Defect::SelfDependency,
            Some(_) => return Ok(None),
        };
        // RFC 9113 section 6.3 asks for a stream error; a stream that is not open cannot be reset.
        if self.streams.get(head.stream).is_some() { self.stream_error(head.stream, defect, out) } else { Err(defect) }
    }
}
