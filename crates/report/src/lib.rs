//! Results as one HTML page: inline SVG, no scripts, no network.
