# frozen_string_literal: true

# The requests of the conformance table of crates/http1, whose head describes its format.
module ConformanceTable
  TABLE = File.expand_path("../../crates/http1/conformance/cases.txt", __dir__)

  Case = Struct.new(:name, :bytes, :limits, :messages, :verdict)
  Message = Struct.new(:method, :target, :persistence, :body)

  def self.cases
    File.read(TABLE, encoding: "UTF-8").lines(chomp: true).reject { |line| line.start_with?("#") }.chunk { |line| !line.empty? }
        .select(&:first).map { |_, lines| read(lines) }.compact
  end

  def self.read(lines)
    found = Case.new(nil, +"".b, {}, [], nil)
    last = nil
    lines.each do |line|
      key, value = line.split(/: ?/, 2)
      case key
      when "case" then found.name = value
      when "request" then found.bytes << unescape(value)
      when "response" then return nil
      when "limits" then found.limits = value.split.to_h { |limit| limit.split("=").then { |name, most| [name.to_sym, most.to_i] } }
      when "message"
        method, target, _framing, persistence = value.split
        found.messages << (last = Message.new(method, target, persistence, +"".b))
      when "partial" then last = nil
      when "body" then last&.body&.concat(unescape(value))
      when "accept" then found.verdict = :accept
      when "incomplete" then found.verdict = 400
      when "reject" then found.verdict = value.split.last.to_i
      end
    end
    found
  end

  def self.unescape(text)
    text.b.gsub(/\\(?:x(\h\h)|\{(\d+):((?:[^}\\]|\\.)*)\}|(.))/mn) do
      next $1.hex.chr if $1
      next unescape($3) * $2.to_i if $2

      { "r" => "\r", "n" => "\n", "t" => "\t", "0" => "\0", "\\" => "\\" }.fetch($4)
    end
  end
end
