// Package topicpb is the payloads of common/topic, generated from topic.proto by `make generate`.
//
// It owns the field numbers: a contract with every edgecore and cloudcore that is in use. It has no
// checks itself; common/topic does. Messages are plain values.
package topicpb
