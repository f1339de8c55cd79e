# frozen_string_literal: true

module Oroshi
  class Settings
    # Types of options. A type accepts Strings, as from a command line, and Ruby values; `expected` describes them.
    #
    # `read` receives the value, and returns the checked value or UNFIT.
    Type = Struct.new(:expected, :example, :read)

    module Types
      UNFIT = Object.new.freeze

      module_function

      # optional: nil is allowed too, and means "not set".
      def integer(range, optional: false, example: [range.begin, 1].max)
        most = range.end ? " to #{range.end}" : " on"
        Type.new("a whole number from #{range.begin}#{most}", example, lambda { |value|
          return nil if value.nil? && optional

          number = value.is_a?(String) ? Integer(value, 10, exception: false) : value
          number.is_a?(Integer) && range.cover?(number) ? number : UNFIT
        })
      end

      # Seconds as a Float. Takes numbers (seconds) and Strings with ms, s, m or h.
      def seconds(optional: false)
        Type.new("a time: seconds, or a number with ms, s, m or h", "30s", lambda { |value|
          return nil if value.nil? && optional

          scaled(value, { "" => 1, "ms" => 0.001, "s" => 1, "m" => 60, "h" => 3600 })&.to_f || UNFIT
        })
      end

      # Bytes as an Integer. Takes numbers and Strings with k, m or g (powers of 1024).
      def bytes
        Type.new("a size: bytes, or a number with k, m or g", "10m", lambda { |value|
          scaled(value, { "" => 1, "k" => 1 << 10, "m" => 1 << 20, "g" => 1 << 30 })&.to_i || UNFIT
        })
      end

      WORDS_FOR = { true => %w[true yes on 1], false => %w[false no off 0] }.freeze

      def boolean
        Type.new("true or false", "true", lambda { |value|
          WORDS_FOR.each { |truth, words| return truth if words.include?(value.to_s.downcase) }
          UNFIT
        })
      end

      # auto: the number of processors that this process may use.
      def workers
        plain = integer(1..)
        Type.new("#{plain.expected}, or auto (one per processor)", "4", lambda { |value|
          value.to_s == "auto" ? Etc.nprocessors : plain.read.call(value)
        })
      end

      # Maximum number of usual threads of a worker, and of others: half of what the native side allows.
      MOST_THREADS = 128

      # A number, or MIN:MAX as for Puma: all threads start at once, so only MAX counts.
      def threads
        plain = integer(1..MOST_THREADS)
        Type.new("#{plain.expected}, or MIN:MAX", "5", lambda { |value|
          least, most = value.to_s[/\A\d+:\d+\z/]&.split(":")
          next plain.read.call(value) unless most

          Integer(least, 10) > Integer(most, 10) ? UNFIT : plain.read.call(most)
        })
      end

      def text(expected, example, optional: false)
        Type.new(expected, example, lambda { |value|
          return nil if value.nil? && optional

          value = value.to_path if value.respond_to?(:to_path)
          value.is_a?(String) && !value.empty? && !value.include?("\0") ? value : UNFIT
        })
      end

      # Addresses, single or as an Array; a String may contain several, separated by commas.
      def addresses
        Type.new("addresses: PORT, HOST:PORT, [V6]:PORT, /a/path or @name, with commas between them", "127.0.0.1:8080",
                 lambda { |value|
                   all = Array(value).flat_map { |one| one.to_s.split(",") }.map(&:strip)
                   all.empty? || all.any? { |one| Listeners::Address.parse(one).nil? } ? UNFIT : all
                 })
      end

      # One address, or nil.
      def address
        Type.new("an address: /a/path, @name, HOST:PORT or [V6]:PORT", "/run/app.status", lambda { |value|
          value.nil? || (value.is_a?(String) && Listeners::Address.parse(value)) ? value : UNFIT
        })
      end

      # Whole numbers from 1 on, as an Array; a String has commas between them.
      def integers
        Type.new("whole numbers from 1 on, with commas between them", "50,1000", lambda { |value|
          all = Array(value.is_a?(String) ? value.split(",") : value)
          all = all.map { |one| one.is_a?(String) ? Integer(one.strip, 10, exception: false) : one }
          !all.empty? && all.all? { |one| one.is_a?(Integer) && one.positive? } ? all : UNFIT
        })
      end

      # A size, or nil.
      def optional_bytes
        plain = bytes
        Type.new(plain.expected, plain.example, ->(value) { value.nil? ? nil : plain.read.call(value) })
      end

      def one_of(*words)
        Type.new("one of #{words.join(", ")}", words.last, lambda { |value|
          words.include?(value.to_s) ? value.to_s.to_sym : UNFIT
        })
      end

      # A file's mode; Strings are octal, as for chmod.
      def mode
        Type.new("a mode in octal", "0660", lambda { |value|
          number = value.is_a?(String) ? Integer(value, 8, exception: false) : value
          number.is_a?(Integer) && (0..0o777).cover?(number) ? number : UNFIT
        })
      end

      # A hook. Only a config file or Ruby can give it.
      def hook
        Type.new("a block, in a config file", "{ ... }", lambda { |value|
          value.nil? || value.respond_to?(:call) ? value : UNFIT
        })
      end

      # Returns a number above or equal to 0, or nil if it is no number with one of these units.
      def scaled(value, units)
        if value.is_a?(String)
          number, unit = value.strip.downcase.match(/\A(\d+(?:\.\d+)?)\s*([a-z]*)\z/)&.captures
          return nil unless number && units.key?(unit)

          value = (unit.empty? ? Rational(number) : Rational(number) * units[unit].rationalize)
        end
        value.is_a?(Numeric) && value.real? && value.to_f.finite? && value >= 0 ? value : nil
      end
    end
  end
end
