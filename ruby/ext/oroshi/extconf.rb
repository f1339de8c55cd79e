# frozen_string_literal: true

# `gem install` runs this, and then make: the Makefile has cargo build the native worker. (In the repository it is
# `rake compile` that does so, without this file.)
#
# Needs cargo (https://rustup.rs), Ruby's headers (Debian: ruby-dev) and libclang (Debian: libclang-dev).

require "rbconfig"

abort "oroshi: cargo is missing, which builds the native worker. Install Rust (https://rustup.rs), then try again." \
  unless system("cargo", "--version", out: File::NULL, err: File::NULL)

headers = RbConfig::CONFIG["rubyhdrdir"]
abort "oroshi: #{headers}/ruby.h is missing. Install Ruby's headers (Debian: ruby-dev), then try again." \
  unless File.exist?("#{headers}/ruby.h")

# rb-sys, which reads the headers, asks this very Ruby for them. What cargo makes on the way is large, and goes again
# unless CARGO_TARGET_DIR says where it should stay.
File.write("Makefile", <<~MAKEFILE)
  export RUBY := #{RbConfig.ruby}
  sitearchdir = #{RbConfig::CONFIG["sitearchdir"]}
  target = $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)

  all:
  \tcargo build --release --locked --manifest-path "$(CURDIR)/Cargo.toml" --target-dir "$(target)"

  install: all
  \tmkdir -p "$(DESTDIR)$(sitearchdir)/oroshi"
  \tcp "$(target)/release/liboroshi_native.so" "$(DESTDIR)$(sitearchdir)/oroshi/native.so"
  ifeq ($(CARGO_TARGET_DIR),)
  \trm -rf "$(target)"
  endif

  clean:

  .PHONY: all install clean
MAKEFILE
