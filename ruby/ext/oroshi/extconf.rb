# frozen_string_literal: true

require_relative "../native_makefile"

NativeMakefile.write("oroshi-native", "native")
