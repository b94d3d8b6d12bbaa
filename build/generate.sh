#!/usr/bin/env bash
# generate.sh [DIR]: regenerates the generated code, in the tree or, for comparing, in a copy of it below DIR.
set -euo pipefail
into=${1:-.}
if ! command -v protoc >/dev/null; then
	echo "generate: there is no protoc: apt-get install protobuf-compiler" >&2
	exit 1
fi
# The plugin is of the module that the generated code is compiled with: go.mod pins both at once.
mkdir -p bin/tools
go build -buildvcs=false -o bin/tools/protoc-gen-go google.golang.org/protobuf/cmd/protoc-gen-go
git ls-files -co --exclude-standard -- '*.proto' | while read -r proto; do
	dir=$(dirname "$proto")
	mkdir -p "$into/$dir"
	out=$(realpath "$into/$dir")
	(cd "$dir" && PATH="$OLDPWD/bin/tools:$PATH" protoc --go_out="$out" --go_opt=paths=source_relative "$(basename "$proto")")
done

# Deep copies and CRDs of the API types. controller-gen is pinned in build/tools/generate/go.mod.
go build -buildvcs=false -modfile=build/tools/generate/go.mod -o bin/tools/controller-gen sigs.k8s.io/controller-tools/cmd/controller-gen
mkdir -p "$into/common/api/v1alpha1" "$into/manifests/crds" "$into/manifests/monitoring"
bin/tools/controller-gen object paths=./common/api/v1alpha1 output:object:dir="$into/common/api/v1alpha1"
bin/tools/controller-gen crd:maxDescLen=2000 paths=./common/api/v1alpha1 output:crd:dir="$into/manifests/crds"

# Their reference. The package's comment is about the source, so it is left out.
go build -buildvcs=false -modfile=build/tools/generate/go.mod -o bin/tools/crd-ref-docs github.com/elastic/crd-ref-docs
mkdir -p "$into/docs/reference"
bin/tools/crd-ref-docs --log-level=ERROR --source-path=common/api/v1alpha1 --config=build/tools/generate/crd-ref-docs.yaml --renderer=markdown --output-path="$into/docs/reference/crds.md"
sed -i -e '1s/.*/# Custom resources/' -e '/^Package v1alpha1/,/^### Resource Types/{/^### Resource Types/!d}' -e 's/ *$//' "$into/docs/reference/crds.md"

# The Grafana dashboards.
go run -C build/tools/dashboards . "$(realpath "$into")/manifests/monitoring"
