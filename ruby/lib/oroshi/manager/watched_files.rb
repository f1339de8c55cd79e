# frozen_string_literal: true

module Oroshi
  class Manager
    # Files of the application, for development: tells when one of them changes, appears or goes.
    class WatchedFiles
      # Endings of files that an application loads.
      ENDINGS = %w[rb ru erb haml slim yml yaml json].freeze
      # Folders without code of the application, or with too much of others'.
      WITHOUT = %w[node_modules vendor tmp log public coverage].freeze
      INTERVAL_S = 0.5

      # paths: files and folders, with commas between them.
      def initialize(paths)
        @paths = paths.split(",").map(&:strip)
        @next = 0
        @known = files
      end

      def interval_s
        INTERVAL_S
      end

      # Returns the name of a changed file, or nil.
      def changed(now)
        return nil if now < @next

        @next = now + INTERVAL_S
        before, @known = @known, files
        return nil if before == @known

        (before.to_a - @known.to_a | @known.to_a - before.to_a).first.first
      end

      private

      # Returns each file with its time and size.
      def files
        @paths.flat_map { |path| File.directory?(path) ? inside(path) : [path] }.to_h do |path|
          stat = File.stat(path)
          [path, [stat.mtime, stat.size]]
        rescue SystemCallError # it has just gone
          [path, nil]
        end
      end

      def inside(folder)
        files = Dir.glob("*.{#{ENDINGS.join(",")}}", base: folder).map { |name| File.join(folder, name) }
        folders = Dir.glob("*/", base: folder).map { |name| name.delete_suffix("/") } - WITHOUT
        files + folders.reject { |name| File.symlink?(File.join(folder, name)) }
                       .flat_map { |name| inside(File.join(folder, name)) }
      end
    end
  end
end
