package edgeapi_test

import (
	"context"
	"encoding/json"
	"net/http"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/topic"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/edge/internal/core/edgeapi"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/object"
	"github.com/skerry-io/skerry/edge/internal/core/store"
	"github.com/skerry-io/skerry/tests/cluster/poll"
)

// fakeHub is edgehub with a cloud behind it, as seen by the metamanager: it delivers to each
// interest all objects that match its field selector, takes every write, and answers token
// requests.
type fakeHub struct {
	t *testing.T

	mu        sync.Mutex
	linked    bool
	epoch     uint64
	sequence  uint64
	version   int
	objects   map[object.Ref]object.Object
	sent      map[object.Ref]bool
	interests []*topicpb.Interest
	written   []string
	out       []message.Message
	wake      chan struct{}
}

func newFakeHub(t *testing.T) *fakeHub {
	return &fakeHub{t: t, objects: map[object.Ref]object.Object{}, sent: map[object.Ref]bool{}, version: 100, wake: make(chan struct{}, 1)}
}

func (*fakeHub) Name() message.Name { return "edgehub" }

func (h *fakeHub) Run(ctx context.Context, port *beehive.Port) error {
	port.Ready()
	go func() { // ends with ctx: messages to the device must not block those from it
		for {
			h.mu.Lock()
			out := h.out
			h.out = nil
			h.mu.Unlock()
			for _, m := range out {
				if m.Route.Group != "" {
					_ = port.SendToGroup(ctx, linkstate.Group, m)
				} else {
					_ = port.Send(ctx, metamanager.Name, m)
				}
			}
			select {
			case <-ctx.Done():
				return
			case <-h.wake:
			}
		}
	}()
	for {
		m, err := port.Receive(ctx)
		if err != nil {
			return nil
		}
		h.mu.Lock()
		switch content := m.Content.(type) {
		case *topicpb.Interests:
			h.interests = content.GetInterests()
			h.publish()
		case *topicpb.Write:
			h.written = append(h.written, string(m.Route.Kind)+" "+content.GetName())
			h.down(m.Answer(&topicpb.WriteResult{Id: content.GetId(), Accepted: true}))
		case *topicpb.APIRequest:
			answer := h.answer(content)
			h.mu.Unlock()
			_ = port.Reply(ctx, m, answer)
			h.mu.Lock()
		}
		h.mu.Unlock()
	}
}

func (h *fakeHub) answer(r *topicpb.APIRequest) any {
	if !h.linked {
		return linkstate.ErrNoLink
	}
	if r.GetPath() == "/api/v1/namespaces/default/serviceaccounts/app/token" {
		body, _ := json.Marshal(&authenticationv1.TokenRequest{
			TypeMeta: metav1.TypeMeta{Kind: "TokenRequest", APIVersion: "authentication.k8s.io/v1"},
			Status:   authenticationv1.TokenRequestStatus{Token: "the token"},
		})
		return &topicpb.APIResponse{Code: http.StatusCreated, ContentType: "application/json", Body: body}
	}
	return statusAnswer(http.StatusForbidden, metav1.StatusReasonForbidden)
}

// down sends to the metamanager. Called with h.mu held.
func (h *fakeHub) down(m message.Message) {
	m.Header.Session = h.epoch
	h.out = append(h.out, m)
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

func (h *fakeHub) link(up bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.linked = up
	m := linkstate.Down.New(message.Resource{}, linkstate.Loss{Epoch: h.epoch})
	if up {
		h.epoch++
		h.sequence = 0
		h.sent = map[object.Ref]bool{}
		m = linkstate.Up.New(message.Resource{}, linkstate.Link{Epoch: h.epoch})
	}
	m.Route.Group = linkstate.Group
	h.down(m)
}

func (h *fakeHub) set(o object.Object) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.version++
	o.CloudVersion = strconv.Itoa(h.version)
	h.objects[o.Ref] = o
	delete(h.sent, o.Ref)
	h.publish()
}

// publish sends the selected objects that have not been sent. Called with h.mu held.
func (h *fakeHub) publish() {
	if !h.linked || len(h.interests) == 0 {
		return
	}
	h.sequence++
	state := &topicpb.State{Sequence: h.sequence}
	for _, i := range h.interests {
		state.Synced = append(state.Synced, i.GetId())
		if i.GetDependencies() { // all ConfigMaps: some pod refers to each
			for ref, o := range h.objects {
				if object.Travels(ref.Resource) && !h.sent[ref] {
					h.sent[ref] = true
					state.Changes = append(state.Changes, &topicpb.Changes{
						Resource: &topicpb.Resource{Version: ref.Resource.Version, Resource: ref.Resource.Resource},
						Items:    []*topicpb.Change{{Namespace: ref.Namespace, Name: ref.Name, Uid: string(o.UID), ResourceVersion: o.CloudVersion, Object: o.Raw}},
					})
				}
			}
			continue
		}
		selector, err := fields.ParseSelector(i.GetFieldSelector())
		if err != nil {
			h.t.Error(err)
		}
		for ref, o := range h.objects {
			s := object.Selection{Resource: ref.Resource, Namespace: i.GetNamespace(), Fields: selector}
			if ok, err := s.Matches(o); h.sent[ref] || !ok || err != nil || ref.Resource.Resource != i.GetResource().GetResource() {
				continue
			}
			h.sent[ref] = true
			state.Changes = append(state.Changes, &topicpb.Changes{Resource: i.GetResource(), Items: []*topicpb.Change{{
				Namespace: ref.Namespace, Name: ref.Name, Uid: string(o.UID), ResourceVersion: o.CloudVersion, Object: o.Raw,
			}}})
		}
	}
	h.down(topic.State.New(message.Resource{}, state))
}

func (h *fakeHub) holds(what string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.written {
		if w == what {
			return true
		}
	}
	return false
}

// device is a metamanager with its API, started on a data directory.
func device(t *testing.T, dir string, h *fakeHub) (kubernetes.Interface, func()) {
	t.Helper()
	c, _, stop := deviceLost(t, dir, h)
	return c, stop
}

// deviceLost is device, with the names of the data that a damaged store has lost.
func deviceLost(t *testing.T, dir string, h *fakeHub) (kubernetes.Interface, []string, func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	st, err := store.Open(ctx, store.Config{Path: filepath.Join(dir, "store.db")})
	if err != nil {
		t.Fatal(err)
	}
	m := metamanager.New(metamanager.Config{NodeName: node, Store: st, ReportEvents: true, Limits: metamanager.Limits{SyncWait: 200 * time.Millisecond}})
	s := edgeapi.New(edgeapi.Config{NodeName: node, Backend: m, State: st.Module(string(edgeapi.Name)), DataDir: dir})
	runner, err := beehive.NewRunner(beehive.Config{}, []beehive.Entry{{Module: m, Groups: []message.Group{linkstate.Group}}, {Module: s}, {Module: h}})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- runner.Run(ctx) }()
	poll.True(t, "the modules run", func() bool {
		for _, health := range runner.Health() {
			if health.State != beehive.Ready {
				return false
			}
		}
		return true
	})
	config := s.ClientConfig(edgeapi.Identity{Kubelet: true})
	config.Transport = noRetries{config.Transport}
	return client(t, config), st.Lost(), sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
}

func asObject(t *testing.T, p *corev1.Pod) object.Object {
	t.Helper()
	o, err := object.FromObject(pods, p)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// TestWithTheManager acts as a kubelet on the real metamanager and store: on line, cut off, and
// after a start without a link.
func TestWithTheManager(t *testing.T) {
	dir := t.TempDir()
	h := newFakeHub(t)
	h.set(asObject(t, pod("web")))
	c, stop := device(t, dir, h)
	defer stop()
	own := metav1.ListOptions{FieldSelector: "spec.nodeName=" + node, ResourceVersion: "0"}
	if _, err := c.CoreV1().Pods("").List(t.Context(), own); !apierrors.IsServiceUnavailable(err) {
		t.Fatalf("before the first link: %v, want ServiceUnavailable", err)
	}
	h.link(true)
	poll.True(t, "the pods are synced", func() bool {
		list, err := c.CoreV1().Pods("").List(t.Context(), own)
		return err == nil && len(list.Items) == 1
	})

	ctx, cancel := context.WithCancel(t.Context())
	informer := informers.NewSharedInformerFactoryWithOptions(c, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = own.FieldSelector
	})).Core().V1().Pods().Informer()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		informer.RunWithContext(ctx)
	}()
	if !cache.WaitForCacheSync(t.Context().Done(), informer.HasSynced) {
		t.Fatal("the informer doesn't sync")
	}
	h.set(asObject(t, pod("more")))
	poll.True(t, "a new pod is seen", func() bool { return len(informer.GetStore().List()) == 2 })

	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-node-lease", Name: node}}
	if _, err := c.CoordinationV1().Leases("kube-node-lease").Get(t.Context(), node, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the first lease: %v, want NotFound", err)
	}
	if _, err := c.CoordinationV1().Leases("kube-node-lease").Create(t.Context(), lease, metav1.CreateOptions{}); err != nil {
		t.Errorf("creating the lease: %v", err)
	}
	token := func(c kubernetes.Interface) string {
		t.Helper()
		answer, err := c.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "app", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		if err != nil {
			t.Errorf("asking for a token: %v", err)
			return ""
		}
		return answer.Status.Token
	}
	token(c)
	event := func(c kubernetes.Interface, name string) {
		t.Helper()
		_, err := c.CoreV1().Events("default").Create(t.Context(), &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Namespace: "default", Name: name},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "web", UID: "uid-web"},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Errorf("event: %v", err)
		}
	}
	event(c, "web.1")
	poll.True(t, "the event arrives", func() bool { return h.holds("event web.1") })

	h.link(false)
	patch := func(c kubernetes.Interface, phase string) {
		t.Helper()
		patched, err := c.CoreV1().Pods("default").Patch(t.Context(), "web", types.StrategicMergePatchType,
			[]byte(`{"metadata":{"uid":"uid-web"},"status":{"message":"`+phase+`"}}`), metav1.PatchOptions{}, "status")
		if err != nil || patched.Status.Message != phase {
			t.Errorf("patching: %v, %v", patched, err)
		}
	}
	patch(c, "cut off")
	poll.True(t, "the informer sees the patch", func() bool {
		o, ok, err := informer.GetStore().GetByKey("default/web")
		return err == nil && ok && o.(*corev1.Pod).Status.Message == "cut off"
	})
	cancel()
	<-ended
	stop()

	// A start without a link.
	h2 := newFakeHub(t)
	c, stop = device(t, dir, h2)
	defer stop()
	list, err := c.CoreV1().Pods("").List(t.Context(), own)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, p := range list.Items {
		got[p.Name] = p.Status.Message
	}
	if diff := cmp.Diff(map[string]string{"web": "cut off", "more": ""}, got); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
	if got := token(c); got != "the token" {
		t.Errorf("token without a link: %q", got)
	}
	event(c, "web.2")
	h2.link(true)
	poll.True(t, "what waited arrives", func() bool { return h2.holds("event web.2") && h2.holds("podstatus web") })
}
