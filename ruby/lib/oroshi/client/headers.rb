# frozen_string_literal: true

module Oroshi
  class Client
    # Header fields as received. Names compare without regard to case. Values are frozen Strings, in UTF-8 if valid,
    # else binary.
    class Headers
      include Enumerable

      # lines: `Name: value`, each with a line end.
      def initialize(lines)
        @fields = lines.b.split("\n").map { |line| line.split(": ", 2).map { |part| readable(part) }.freeze }.freeze
        freeze
      end

      # The value of the first field of this name, or nil.
      def [](name)
        @fields.each { |field, value| return value if field.casecmp?(name) }
        nil
      end

      # The values of all fields of this name, in their order.
      def all(name)
        @fields.filter_map { |field, value| value if field.casecmp?(name) }
      end

      def key?(name)
        !self[name].nil?
      end

      # Yields name and value of each field, in their order and spelling.
      def each(&block)
        return enum_for(:each) { @fields.size } unless block

        @fields.each(&block)
        self
      end

      def empty?
        @fields.empty?
      end

      # Returns names in lower case, with the values of equal ones joined by ", " (RFC 9110, section 5.2), those of
      # Set-Cookie by a line end.
      def to_h
        @fields.each_with_object({}) do |(name, value), hash|
          name = name.downcase
          known = hash[name]
          hash[name] = known ? joined(known, value, name == "set-cookie" ? "\n" : ", ") : value
        end
      end

      def ==(other)
        other.is_a?(Headers) && to_a == other.to_a
      end

      # Hides the values of fields that contain secrets.
      def inspect
        shown = @fields.map { |name, value| "#{name}: #{Native.secret?(name) ? "***" : value.inspect}" }
        "#<#{self.class} #{shown.join(", ")}>"
      end

      private

      def joined(first, second, separator)
        return first + separator + second if Encoding.compatible?(first, second)

        first.b + separator + second.b
      end

      def readable(part)
        part.force_encoding(Encoding::UTF_8)
        (part.valid_encoding? ? part : part.force_encoding(Encoding::BINARY)).freeze
      end
    end
  end
end
