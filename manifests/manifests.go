// Package manifests holds the YAML that `cloudcore install` prints: this folder, inside the binary.
//
// It owns only the embedding; the files are kustomizations and can be used as such. FS never
// changes.
package manifests

import "embed"

// FS is this folder.
//
//go:embed autonomy cloudcore console crds deployment endpoint kube-vip subresources usage
var FS embed.FS
