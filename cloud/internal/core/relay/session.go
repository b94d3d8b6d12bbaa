package relay

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/cloud/internal/core/cloudhub"
	"github.com/skerry-io/skerry/cloud/internal/core/kube"
	"github.com/skerry-io/skerry/cloud/internal/core/quota"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/recovery"
)

// session is one edge's way up.
type session struct {
	relay *Relay
	link  cloudhub.Session
	node  types.NodeName
	as    kube.Identity
	queue *queue
	lease *lease

	versions versions // of this session's writes

	requests chan struct{} // bounds the API requests in flight
	held     quota.Bytes   // of writes, requests and their answers
	wg       sync.WaitGroup
	mu       sync.Mutex
	ended    bool // no request starts any more
}

// begin runs f concurrently with the session's other work; Stop waits for it. A panic ends the
// session: the edge repeats the unacknowledged writes, and other sessions are not affected.
func (s *session) begin(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.wg.Go(func() {
			if err := recovery.Do(context.Background(), "relay", func() error { f(); return nil }); err != nil {
				s.link.Close(link.CloseInternal, err.Error()+" in cloudcore")
			}
		})
	}
}

func (s *session) do(ctx context.Context, method, p, contentType string, body []byte) (*kube.Response, error) {
	return s.relay.client.Do(ctx, s.as, kube.Request{Method: method, Path: p, ContentType: contentType, Accept: metadataOnly, Body: body})
}
