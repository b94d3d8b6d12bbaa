package hostile_test

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/link"
	"github.com/skerry-io/skerry/common/pki"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/tests/cluster"
	"github.com/skerry-io/skerry/tests/hostile"
)

// TestHostile_05_QuotasAnswer429WithRetryAfter: one device declares 4,096 new interests again and
// again, selectors of a megabyte, events for a minute, requests and reports as fast as it can.
// Above its quotas it is answered 429 with a Retry-After and the name of the quota, which a metric
// counts. Another node is served in the meantime; and a refused request succeeds when the device
// repeats it after that time, as an honest edge does.
func TestHostile_05_QuotasAnswer429WithRetryAfter(t *testing.T) {
	// Quotas smaller than the defaults: this test is about requests above them.
	s := newSystem(t, "tunnel: {listen: \"\"}\nrelay: {quotas: {eventBurst: 400, eventsPerSecond: 10, requestBurst: 1000, requestsPerSecond: 20, "+
		"reportBurst: 200, reportsPerSecond: 10, statusBurst: 256, statusesPerSecond: 5, statusByteBurst: 8388608, statusBytesPerSecond: 131072}}\n")
	ns := things(t)
	device, other := s.dial(t, link.QUIC, own), s.dial(t, link.WebSocket, another)
	t.Run("events", func(t *testing.T) { floodOfEvents(t, s, device, other, ns, 12*time.Second) })
	// make long-test runs it: a minute of a processor, and more.
	t.Run("events for a minute", func(t *testing.T) { floodOfEvents(t, s, device, other, ns, time.Minute) })
	// Before the requests are used up, whose quota these need too.
	t.Run("certificate requests", func(t *testing.T) { floodOfCertificateRequests(t, s, device, other) })
	t.Run("statuses", func(t *testing.T) { floodOfStatuses(t, s, device, other) })
	t.Run("requests", func(t *testing.T) { floodOfRequests(t, device, other) })
	t.Run("reports", func(t *testing.T) { floodOfReports(t, s, device, other, ns) })
	t.Run("interests", func(t *testing.T) { floodOfInterests(t, s, device, other) })
	t.Run("selectors", func(t *testing.T) { longSelectors(t, s, other) })
}

// flooded is how a flood was answered: how many of its parts were taken, and one of the refusals.
type flooded struct {
	taken, refused int
	status         metav1.Status
}

func (f *flooded) note(raw []byte) error {
	var s metav1.Status
	if err := json.Unmarshal(raw, &s); err != nil {
		return fmt.Errorf("a refusal that can't be read: %w", err)
	}
	if s.Code != http.StatusTooManyRequests || s.Details == nil || s.Details.RetryAfterSeconds < 1 {
		return fmt.Errorf("refused with %s", raw)
	}
	f.refused++
	f.status = s
	return nil
}

// check: at least most were refused, and never more were taken than the burst, and the rate for the
// time that it took.
func (f *flooded) check(t *testing.T, quota string, burst, perSecond int, began time.Time) {
	t.Helper()
	if most := burst + (perSecond+perSecond/50+1)*(int(time.Since(began).Seconds())+1); f.taken > most || f.taken < burst/2 {
		t.Errorf("%d were taken, want at most %d and at least half a burst", f.taken, most)
	}
	if f.refused == 0 || f.status.Details.Name != quota || f.status.Details.Kind != topic.QuotaKind {
		t.Errorf("%d were refused, the last because of %+v; want %s", f.refused, f.status.Details, quota)
	}
	t.Logf("%d taken, %d refused: %s", f.taken, f.refused, f.status.Message)
}

func eventOf(ns, pod, name string) *topicpb.Write {
	return &topicpb.Write{Verb: topicpb.Verb_CREATE, Resource: &topicpb.Resource{Version: "v1", Resource: "events"}, Namespace: ns, Name: name, Body: eventAbout(ns, name, pod)}
}

func floodOfEvents(t *testing.T, s *system, device, other *hostile.Device, ns string, long time.Duration) {
	// 1,000 a second, but no more on the way than end a session: the device is answered more slowly
	// than it sends.
	const events, window = 60_000, 256
	const quota = "relay.quotas.eventsPerSecond"
	counted := func() int { return s.metric(t, `skerry_relay_over_quota_total{quota="`+quota+`"}`) }
	name := func(i int) string { return fmt.Sprintf("flood-of-%v-%d", long, i) }
	before := counted()
	began, f := time.Now(), &flooded{}
	results := make([]*topicpb.WriteResult, events)
	var g errgroup.Group
	g.SetLimit(window)
	honest := make(chan error, 1)
	ask := sync.OnceFunc(func() {
		go func() {
			r, err := other.Write(t.Context(), topic.EventWrite, eventOf(ns, "theirs", fmt.Sprintf("honest-%v", long)))
			if err == nil && !r.GetAccepted() {
				err = fmt.Errorf("refused: %s", r.GetStatus())
			}
			honest <- err
		}()
	})
	sent := 0
	var refused atomic.Int64
	for i := range events {
		// On a busy machine the quota is used up not much faster than it is given: until it is.
		if took := time.Since(began); took > time.Minute || took > long && refused.Load() > 0 {
			break
		}
		sent++
		if i == events/2 || time.Since(began) > long/2 {
			ask()
		}
		g.Go(func() (err error) {
			results[i], err = device.Write(t.Context(), topic.EventWrite, eventOf(ns, "mine", name(i)))
			if err == nil && !results[i].GetAccepted() {
				refused.Add(1)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	ask()
	if err := <-honest; err != nil {
		t.Errorf("another node's event: %v", err)
	}
	last := -1
	for i, r := range results[:sent] {
		if r.GetAccepted() {
			f.taken++
		} else if err := f.note(r.GetStatus()); err != nil {
			t.Fatal(err)
		} else {
			last = i
		}
	}
	f.check(t, quota, 400, 10, began)
	if n := counted() - before; n != f.refused {
		t.Errorf("the metric counts %d of %d refusals", n, f.refused)
	}
	cluster.Eventually(t, "a refused event is taken when it comes again", func(ctx context.Context) error {
		r, err := device.Write(ctx, topic.EventWrite, eventOf(ns, "mine", name(last)))
		if err == nil && !r.GetAccepted() {
			err = fmt.Errorf("refused: %s", r.GetStatus())
		}
		return err
	})
}

// floodOfStatuses: each makes kube-apiserver read, judge and write the whole Node.
func floodOfStatuses(t *testing.T, s *system, device, other *hostile.Device) {
	status := func(node string, bytes int) *topicpb.Write {
		body := fmt.Appendf(nil, `{"metadata":{"annotations":{"x":%q}}}`, strings.Repeat("y", bytes))
		return &topicpb.Write{
			Verb: topicpb.Verb_PATCH, Resource: &topicpb.Resource{Version: "v1", Resource: "nodes"}, Name: node, Subresource: "status", Body: body, PatchType: string(types.MergePatchType),
		}
	}
	for _, flood := range []struct {
		quota                           string
		writes, bytes, burst, perSecond int
	}{
		{"relay.quotas.statusBytesPerSecond", 40, 400 << 10, 8 << 20 / (400 << 10), 1},
		{"relay.quotas.statusesPerSecond", 400, 10, 256, 5}, // the last: it leaves no number of writes for bytes
	} {
		began, f := time.Now(), &flooded{}
		// On a busy machine the quota is used up not much faster than it is given: until it is.
		for round := 0; f.refused == 0 && round < 10; round++ {
			results := make([]*topicpb.WriteResult, flood.writes)
			var g errgroup.Group
			g.SetLimit(8) // more would be above the bytes in flight
			for i := range results {
				g.Go(func() (err error) {
					results[i], err = device.Write(t.Context(), topic.NodeStatusWrite, status(own, flood.bytes))
					return err
				})
			}
			if err := g.Wait(); err != nil {
				t.Fatal(err)
			}
			for _, r := range results {
				// kube-apiserver bounds annotations: it may refuse a write that was passed on.
				if err := f.note(r.GetStatus()); r.GetAccepted() || err != nil {
					f.taken++
				}
			}
		}
		f.check(t, flood.quota, flood.burst, flood.perSecond, began)
		if n := s.metric(t, `skerry_relay_over_quota_total{quota="`+flood.quota+`"}`); n != f.refused {
			t.Errorf("the metric counts %d of %d refusals", n, f.refused)
		}
		if r, err := other.Write(t.Context(), topic.NodeStatusWrite, status(another, 10)); err != nil || !r.GetAccepted() {
			t.Errorf("another node's status: %v %s", err, r.GetStatus())
		}
		waited := time.Duration(f.status.Details.RetryAfterSeconds) * time.Second
		cluster.Eventually(t, "a status is taken when it comes again", func(ctx context.Context) error {
			r, err := device.Write(ctx, topic.NodeStatusWrite, status(own, 10))
			if err == nil && !r.GetAccepted() {
				err = fmt.Errorf("refused, to come again in %v: %s", waited, r.GetStatus())
			}
			return err
		})
	}
}

func floodOfRequests(t *testing.T, device, other *hostile.Device) {
	const requests = 2000
	began, f := time.Now(), &flooded{}
	answers := make([]*topicpb.APIResponse, requests)
	var g errgroup.Group
	g.SetLimit(12) // 16 at once is another bound
	q := func(node string) *topicpb.APIRequest {
		return &topicpb.APIRequest{Method: "GET", Path: "/api/v1/nodes/" + node}
	}
	for i := range requests {
		g.Go(func() (err error) {
			answers[i], err = device.Ask(t.Context(), q(own))
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, a := range answers {
		if a.GetCode() == http.StatusOK {
			f.taken++
		} else if err := f.note(a.GetBody()); err != nil {
			t.Fatal(err)
		} else if a.GetRetryAfter() == "" {
			t.Fatal("no Retry-After")
		}
	}
	f.check(t, "relay.quotas.requestsPerSecond", 1000, 20, began)
	if a, err := other.Ask(t.Context(), q(another)); err != nil || a.GetCode() != http.StatusOK {
		t.Errorf("another node's request: %d, %v", a.GetCode(), err)
	}
}

// floodOfCertificateRequests: each would stay in etcd, for the approver and people to look at.
func floodOfCertificateRequests(t *testing.T, s *system, device, other *hostile.Device) {
	const requests = 200
	ask := func(d *hostile.Device, node string) *topicpb.APIResponse {
		t.Helper()
		a, err := d.Ask(t.Context(), &topicpb.APIRequest{Method: "POST", Path: "/apis/certificates.k8s.io/v1/certificatesigningrequests", Body: certificateRequest(t, node)})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	began, f := time.Now(), &flooded{}
	for range requests {
		if a := ask(device, own); a.GetCode() == http.StatusCreated {
			f.taken++
		} else if err := f.note(a.GetBody()); err != nil {
			t.Fatal(err)
		}
	}
	f.check(t, "relay.quotas.certificateRequestsPerHour", 60, 1, began)
	if n := s.metric(t, `skerry_relay_over_quota_total{quota="relay.quotas.certificateRequestsPerHour"}`); n != f.refused {
		t.Errorf("the metric counts %d of %d", n, f.refused)
	}
	if a := ask(other, another); a.GetCode() != http.StatusCreated {
		t.Errorf("another node's: %d %s", a.GetCode(), a.GetBody())
	}
}

// certificateRequest is a request for a serving certificate of a node, as its kubelet makes it.
func certificateRequest(t *testing.T, node string) []byte {
	t.Helper()
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: pki.NodeUserPrefix + node, Organization: []string{pki.NodesGroup}}, DNSNames: []string{node},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(&certificatesv1.CertificateSigningRequest{
		TypeMeta:   metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"},
		ObjectMeta: metav1.ObjectMeta{GenerateName: "flood-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: certificatesv1.KubeletServingSignerName,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func floodOfReports(t *testing.T, s *system, device, other *hostile.Device, ns string) {
	const reports = 500
	began, f := time.Now(), &flooded{}
	results := make([]*topicpb.WriteResult, reports)
	var g errgroup.Group
	g.SetLimit(200) // 256 without an answer end the session
	for i := range reports {
		g.Go(func() (err error) {
			results[i], err = device.Write(t.Context(), topic.ReportWrite, reportOf(ns+"-mine", i))
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if r.GetAccepted() {
			f.taken++
		} else if err := f.note(r.GetStatus()); err != nil {
			t.Fatal(err)
		}
	}
	f.check(t, "relay.quotas.reportsPerSecond", 200, 10, began)
	if n := s.metric(t, "skerry_aggregate_over_quota_total"); n != f.refused {
		t.Errorf("the metric counts %d of %d refusals", n, f.refused)
	}
	if r, err := other.Write(t.Context(), topic.ReportWrite, reportOf(ns+"-theirs", 1)); err != nil || !r.GetAccepted() {
		t.Errorf("another node's report: %v %s", err, r.GetStatus())
	}
}

func podsOf(id uint64, node string) *topicpb.Interest {
	return &topicpb.Interest{Id: id, Resource: &topicpb.Resource{Version: "v1", Resource: "pods"}, FieldSelector: "spec.nodeName=" + node}
}

func floodOfInterests(t *testing.T, s *system, device, other *hostile.Device) {
	id := uint64(1)
	for range 5 { // as many new ones each time
		all := make([]*topicpb.Interest, 4096)
		for i := range all {
			id++
			all[i] = &topicpb.Interest{
				Id: id, Resource: &topicpb.Resource{Version: "v1", Resource: "services"}, LabelSelector: fmt.Sprintf("a=%d", id),
			}
		}
		if err := device.Send(t.Context(), topic.Interests.New(message.Resource{}, &topicpb.Interests{Interests: all})); err != nil {
			t.Fatal(err)
		}
	}
	if err := other.Send(t.Context(), topic.Interests.New(message.Resource{}, &topicpb.Interests{Interests: []*topicpb.Interest{podsOf(1, another)}})); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, "another node's interest is synced, and the device is refused", func(context.Context) error {
		if _, synced := other.Interests(); !synced[1] {
			return errors.New("not synced")
		}
		refused, _ := device.Interests()
		f := &flooded{}
		for _, r := range refused {
			if err := f.note(r.GetStatus()); err != nil {
				t.Fatal(err)
			}
		}
		if f.refused < 3000 {
			return fmt.Errorf("%d are refused", f.refused)
		}
		return nil
	})
	if n := s.metric(t, `skerry_publish_over_quota_total{quota="interests"}`) + s.metric(t, `skerry_publish_over_quota_total{quota="newInterestsPerSecond"}`); n < 3000 {
		t.Errorf("the metrics count %d refusals", n)
	}
}

// longSelectors: one of a megabyte ends the link, and many of the longest allowed names are above
// the quota of bytes.
func longSelectors(t *testing.T, s *system, other *hostile.Device) {
	long := func(n, length int) *topicpb.Interests {
		all := make([]*topicpb.Interest, n)
		for i := range all {
			all[i] = &topicpb.Interest{
				Id: uint64(i + 1), Resource: &topicpb.Resource{Version: "v1", Resource: "services"},
				LabelSelector: fmt.Sprintf("a%d in (%s)", i, strings.TrimSuffix(strings.Repeat("b,", length/2), ",")),
			}
		}
		return &topicpb.Interests{Interests: all}
	}
	device := s.dial(t, link.WebSocket, own)
	if err := device.Send(t.Context(), topic.Interests.New(message.Resource{}, long(100, 15<<10))); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, "most of the selectors are refused", func(context.Context) error {
		refused, _ := device.Interests()
		if len(refused) < 90 {
			return fmt.Errorf("%d are refused", len(refused))
		}
		return nil
	})
	_ = device.Send(t.Context(), topic.Interests.New(message.Resource{}, long(1, 1<<20)))
	<-device.Done()
	if closed, ok := errors.AsType[*link.CloseError](device.Err()); !ok || closed.Code != link.CloseTooLarge {
		t.Errorf("a selector of a megabyte: %v", device.Err())
	}
	if _, synced := other.Interests(); !synced[1] {
		t.Error("another node's interest is not synced")
	}
}
