#!/usr/bin/env bash
# Checks what a machine can check without running the product. Every check runs; the exit code is 1 when one failed.
set -uo pipefail
failed=0
bad() {
	echo "verify: $1" >&2
	failed=1
}

unformatted=$(git ls-files -co --exclude-standard -- '*.go' | xargs gofmt -l)
[ -z "$unformatted" ] || bad "not as gofmt wants it: $unformatted"

go vet ./... || bad "vet has found something: see above"

go mod tidy -diff || bad "go.mod or go.sum is not tidy: see the difference above"
for older in build/kubernetes/*/go.mod; do
	go mod tidy -diff -modfile="$older" || bad "$older is not tidy: see the difference above"
done

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
if build/generate.sh "$copy"; then
	while read -r file; do
		# protoc's own version stands in a comment and may differ from machine to machine.
		diff -u <(grep -v '^//.*protoc' "${file#"$copy"/}") <(grep -v '^//.*protoc' "$file") || bad "${file#"$copy"/} is not what make generate makes"
	done < <(find "$copy" -name '*.go' -o -name '*.yaml' -o -name '*.json' -o -name '*.md')
else
	bad "generated code could not be checked"
fi

go test -count 1 ./tests/arch || bad "the architecture's rules are broken: see above"
exit "$failed"
