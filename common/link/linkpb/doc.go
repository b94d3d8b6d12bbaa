// Package linkpb is the envelope of common/link, generated from link.proto by `make generate`.
//
// It owns the field numbers: a contract with every edgecore and cloudcore that is in use. It
// refuses nothing itself; common/link does. Messages are plain values.
package linkpb
