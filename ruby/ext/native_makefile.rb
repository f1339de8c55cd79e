# frozen_string_literal: true

require "rbconfig"

# `gem install` runs the extconf.rb of each native part, and then make: the Makefile has cargo build that part. (In
# the repository it is `rake compile` that does so, without these files.)
#
# Needs cargo (https://rustup.rs), Ruby's headers (Debian: ruby-dev), libclang (Debian: libclang-dev), and for the
# client a C compiler.
module NativeMakefile
  module_function

  # Writes the Makefile that builds a package of ext/Cargo.toml, and installs its library as oroshi/NAME.so.
  def write(package, name)
    abort "oroshi: cargo is missing, which builds #{package}. Install Rust (https://rustup.rs), then try again." \
      unless system("cargo", "--version", out: File::NULL, err: File::NULL)

    headers = RbConfig::CONFIG["rubyhdrdir"]
    abort "oroshi: #{headers}/ruby.h is missing. Install Ruby's headers (Debian: ruby-dev), then try again." \
      unless File.exist?("#{headers}/ruby.h")

    File.write("Makefile", text(package, name))
  end

  # rb-sys, which reads the headers, asks this very Ruby for them. What cargo makes on the way is large, and goes again
  # unless CARGO_TARGET_DIR says where it should stay.
  def text(package, name)
    <<~MAKEFILE
      export RUBY := #{RbConfig.ruby}
      sitearchdir = #{RbConfig::CONFIG["sitearchdir"]}
      target = $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)

      all:
      \tcargo build --release --locked --manifest-path "#{__dir__}/Cargo.toml" --package #{package} --target-dir "$(target)"

      install: all
      \tmkdir -p "$(DESTDIR)$(sitearchdir)/oroshi"
      \tcp "$(target)/release/lib#{package.tr("-", "_")}.so" "$(DESTDIR)$(sitearchdir)/oroshi/#{name}.so"
      ifeq ($(CARGO_TARGET_DIR),)
      \trm -rf "$(target)"
      endif

      clean:

      .PHONY: all install clean
    MAKEFILE
  end
end
