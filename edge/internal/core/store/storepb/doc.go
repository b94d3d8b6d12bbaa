// Package storepb is the form of the store's records.
//
// It owns only the generated types; package store writes and reads them. A record is changed by one
// goroutine at a time.
package storepb
