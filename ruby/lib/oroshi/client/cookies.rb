# frozen_string_literal: true

module Oroshi
  class Client
    # The cookies of a client with the option `cookies`: Client#cookies. They belong to a host, whatever its port. A forked
    # process begins without cookies.
    class Cookies
      # where: returns a URL with a scheme for one without.
      def initialize(settings, &where)
        @settings = settings
        @where = where
      end

      # Returns the value of the cookie that a request to this URL carries, otherwise of the newest of that name; nil
      # without one.
      def get(url, name)
        @settings.cookie(@where.call(url), name.to_s)
      end

      # Sets the value of the cookie that a request to this URL carries, or a new one for all paths of its host.
      #
      # Raises ArgumentError if the URL, the name or the value cannot be used.
      def set(url, name, value)
        @settings.set_cookie(@where.call(url), name.to_s, value.to_s)
        value
      end

      # Removes all cookies.
      def clear
        @settings.clear_cookies
      end

      # Without values, which are secrets.
      def inspect
        "#<#{self.class}>"
      end
    end
  end
end
