// Package storepb is the form of the store's records.
//
// It owns nothing but the generated types; who keeps and reads them is package store. A record is
// changed by one goroutine at a time.
package storepb
