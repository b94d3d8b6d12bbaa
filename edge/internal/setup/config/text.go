package config

import _ "embed"

// DefaultText is the whole file with every field at its default, and a word on each. A test keeps
// it equal to Default.
//
//go:embed default.yaml
var DefaultText string

// MinimalText is the least that works once `edgecore join` has made the identity.
const MinimalText = `apiVersion: config.skerry.io/v1alpha1
kind: EdgeCore
`
