# frozen_string_literal: true

run ->(env) { [200, { "content-type" => "text/plain" }, ["hello from #{env["SERVER_SOFTWARE"]}\n"]] }
