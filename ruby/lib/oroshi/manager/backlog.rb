# frozen_string_literal: true

require "socket"

module Oroshi
  class Manager
    # How many connections wait to be accepted at a listening socket, and how many may.
    module Backlog
      # Offsets in struct tcp_info: of a listening socket, the kernel gives the queue's length and its limit there.
      TCP_UNACKED = 24
      # Netlink (linux/netlink.h, linux/sock_diag.h, linux/unix_diag.h).
      AF_NETLINK = 16
      NETLINK_SOCK_DIAG = 4
      SOCK_DIAG_BY_FAMILY = 20
      NLM_F_REQUEST = 1
      TCPF_LISTEN = 1 << 10
      UDIAG_SHOW_RQLEN = 16
      UNIX_DIAG_RQLEN = 4
      HEADER_BYTES = 16
      UNIX_DIAG_MSG_BYTES = 16

      module_function

      # Returns [length, limit], or nil where the kernel does not say.
      def of(socket)
        socket.local_address.unix? ? of_unix(socket.stat.ino) : of_tcp(socket)
      rescue SystemCallError, IOError
        nil
      end

      def of_tcp(socket)
        info = socket.getsockopt(:TCP, Socket::TCP_INFO).data
        info.unpack("@#{TCP_UNACKED}LL")
      end

      def of_unix(inode)
        Socket.open(AF_NETLINK, Socket::SOCK_RAW, NETLINK_SOCK_DIAG) do |netlink|
          request = [Socket::AF_UNIX, 0, 0, TCPF_LISTEN, inode, UDIAG_SHOW_RQLEN, 0xffffffff, 0xffffffff].pack("CCSLLLLL")
          header = [HEADER_BYTES + request.bytesize, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 1, 0].pack("LSSLL")
          netlink.send(header + request, 0)
          lengths(netlink.recv(4096))
        end
      end

      # Finds the attribute with both lengths in a reply.
      def lengths(reply)
        length, type = reply.unpack("LS")
        return nil unless type == SOCK_DIAG_BY_FAMILY

        at = HEADER_BYTES + UNIX_DIAG_MSG_BYTES
        while at + 4 <= [length, reply.bytesize].min
          size, kind = reply.unpack("@#{at}SS")
          return reply.unpack("@#{at + 4}LL") if kind == UNIX_DIAG_RQLEN && size >= 12
          return nil if size < 4

          at += (size + 3) & ~3
        end
      end
    end
  end
end
