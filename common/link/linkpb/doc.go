// Package linkpb is the envelope of common/link, generated from link.proto by `make generate`.
//
// It owns the field numbers: a contract with every edgecore and cloudcore that is in use. It
// does not check messages; common/link does. Messages are plain values.
package linkpb
