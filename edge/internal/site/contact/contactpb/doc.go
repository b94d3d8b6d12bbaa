// Package contactpb is generated from contact.proto: what the devices of a site say to each other.
// `make generate` makes it again.
package contactpb
