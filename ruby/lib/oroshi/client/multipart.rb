# frozen_string_literal: true

require "securerandom"

module Oroshi
  class Client
    # Forms with files, as multipart/form-data (RFC 7578).
    module Multipart
      class << self
        # Whether a form's value is a file: something with `read`, such as a File or a StringIO.
        def file?(value)
          value.respond_to?(:read)
        end

        # parts: pairs of names and values, plain ones or files. Returns boundary and body; reads files to their end.
        def of(parts)
          # 128 random bits: no content contains them by chance (RFC 2046, section 5.1.1).
          boundary = "oroshi-#{SecureRandom.hex(16)}"
          body = String.new(encoding: Encoding::BINARY)
          parts.each do |name, value|
            body << "--#{boundary}\r\nContent-Disposition: form-data; name=\"#{quoted(name)}\"".b
            body << (file?(value) ? of_file(name, value) : "\r\n\r\n".b + value.to_s.b) << "\r\n"
          end
          [boundary, body << "--#{boundary}--\r\n"]
        end

        private

        def of_file(name, file)
          text = file.read
          unless text.nil? || text.is_a?(String)
            raise ArgumentError, "form: expected `read` of the file `#{name}` to give a String, got one of #{text.class}"
          end

          filename = "; filename=\"#{quoted(File.basename(file.path))}\"" if file.respond_to?(:path) && file.path
          # RFC 7578, section 4.4: the default type.
          "#{filename || "; filename=\"#{quoted(name)}\""}\r\nContent-Type: application/octet-stream\r\n\r\n".b + text.to_s.b
        end

        # Quotes as browsers do (the HTML Standard, section 4.10.21.8): a quote or a line break would end the name.
        def quoted(text)
          text.to_s.b.gsub(/["\r\n]/n, '"' => "%22", "\r" => "%0D", "\n" => "%0A")
        end
      end
    end
  end
end
