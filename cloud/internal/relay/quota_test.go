package relay_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/cloud/internal/kube"
	"github.com/skerry-io/skerry/cloud/internal/relay"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
)

// While kube-apiserver is slow, a session holds writes and requests up to its quota of bytes. What is above it is answered
// 429 at once, and taken once there is room.
func TestBytesInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.relay.Limit(relay.Quotas{Bytes: 4 << 20})
		e := w.connect("edge1", 1)
		slow := true
		w.api.mu.Lock()
		w.api.delay = func(kube.Request) time.Duration {
			if slow {
				return 20 * time.Second
			}
			return 0
		}
		w.api.mu.Unlock()
		megabyte := strings.Repeat("x", 1<<20)
		write := func(id uint64) *topicpb.Write {
			s := podStatus(id, fmt.Sprintf("pod-%d", id), "u", "Running")
			s.Body = fmt.Appendf(nil, `{"status":{"message":%q}}`, megabyte)
			return s
		}
		for id := uint64(1); id <= 10; id++ {
			e.send(topic.PodStatusWrite.New(message.Resource{}, write(id)))
		}
		synctest.Wait()
		var over []string
		for id := 4; id <= 10; id++ {
			over = append(over, fmt.Sprintf("%d TooManyRequests", id))
		}
		want(t, "above the quota", e.takeResults(), over)
		ask := &topicpb.APIRequest{Method: "PUT", Path: "/api/v1/nodes/edge1", Body: []byte(megabyte)}
		e.send(topic.APIRequest.New(message.Resource{}, ask))
		synctest.Wait()
		e.mu.Lock()
		for _, a := range e.answers {
			if a.GetCode() != 429 || a.GetRetryAfter() == "" {
				t.Errorf("a request above the quota: %d, Retry-After %q", a.GetCode(), a.GetRetryAfter())
			}
		}
		if len(e.answers) != 1 {
			t.Errorf("%d answers", len(e.answers))
		}
		e.mu.Unlock()
		w.api.mu.Lock()
		slow = false
		w.api.mu.Unlock()
		time.Sleep(2 * time.Minute)
		if got := e.takeResults(); len(got) != 3 {
			t.Errorf("of the first three: %v", got)
		}
		e.send(topic.PodStatusWrite.New(message.Resource{}, write(11)))
		time.Sleep(time.Minute)
		if got := e.takeResults(); len(got) != 1 || strings.Contains(got[0], "TooManyRequests") {
			t.Errorf("once there is room: %v", got)
		}
	})
}
