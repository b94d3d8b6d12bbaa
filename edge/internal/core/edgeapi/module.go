package edgeapi

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
)

// Name is the module's address on the bus. It receives no messages: its clients use HTTP.
const Name message.Name = "edgeapi"

// Name implements beehive.Module.
func (s *Server) Name() message.Name { return Name }

// Run implements beehive.Module: it serves the listeners. Clients in the process (RoundTripper)
// don't depend on it.
func (s *Server) Run(ctx context.Context, port *beehive.Port) error {
	return s.Serve(ctx, port.Ready)
}

// ClientConfig is the configuration of a client in this process that acts as identity: protobuf, no
// listener, no rate limit.
func (s *Server) ClientConfig(identity Identity) *rest.Config {
	return &rest.Config{
		Host:      Host,
		Transport: s.RoundTripper(identity),
		QPS:       -1,
		ContentConfig: rest.ContentConfig{
			ContentType:        runtime.ContentTypeProtobuf,
			AcceptContentTypes: runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON,
		},
	}
}
