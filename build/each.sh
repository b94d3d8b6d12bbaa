#!/usr/bin/env bash
# each.sh Fuzz|Benchmark COMMAND...: runs COMMAND NAME PACKAGE for each function of that kind. go test takes one fuzz target at a time, and looking at the
# sources spares the compilation of every package that has none. tests/bench is separate from the code: `make bench` runs it.
set -euo pipefail
kind=$1
shift
found=0
while IFS=: read -r file function; do
	name=$(sed -E 's/^func ([A-Za-z0-9_]+).*/\1/' <<<"$function")
	echo "== $(dirname "$file") $name"
	"$@" "^$name\$" "./$(dirname "$file")"
	found=$((found + 1))
done < <(git ls-files -co --exclude-standard -- '*_test.go' ':!tests/bench' | xargs grep -HoE "^func $kind[A-Z_][A-Za-z0-9_]*\(" | sort)
if [ "$found" -eq 0 ]; then
	echo "no function $kind... in any test" >&2
	exit 1
fi
