// Package contactpb is generated from contact.proto: the messages between the devices of a site.
// `make generate` makes it again.
package contactpb
