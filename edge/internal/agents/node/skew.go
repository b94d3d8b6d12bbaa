package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/common/topic/topicpb"
	"github.com/skerry-io/skerry/common/version"
)

// VersionSkew is the condition of a Node whose kubelet does not fit the cluster's kube-apiserver:
// one of the two was changed since the device joined. Pods keep running: the two may misinterpret
// each other's fields, but stopping pods would not help.
const VersionSkew corev1.NodeConditionType = "SkerryVersionSkew"

const (
	skewPoll  = 10 * time.Second // interval of checks whether a request is needed; they are cheap
	skewEvery = time.Hour        // how often kube-apiserver is asked over one link: a cluster may be upgraded behind it
)

// SkewModule compares the kubelet's version with kube-apiserver's, on each link and now and then.
type SkewModule struct {
	linked  func() bool
	request func(context.Context, *topicpb.APIRequest) (*topicpb.APIResponse, error)
	node    string
	client  *rest.Config
}

// NewSkewModule returns the module for the Node of that name. linked reports whether there is a
// link, request asks kube-apiserver through it, client is of the edge API.
func NewSkewModule(linked func() bool, request func(context.Context, *topicpb.APIRequest) (*topicpb.APIResponse, error), node string, client *rest.Config) *SkewModule {
	return &SkewModule{linked, request, node, client}
}

// Name implements beehive.Module.
func (*SkewModule) Name() message.Name { return "skew" }

// Run asks until ctx ends. The condition is written when it changes, the first time only
// where it is bad.
func (m *SkewModule) Run(ctx context.Context, port *beehive.Port) error {
	client, err := kubernetes.NewForConfig(m.client)
	if err != nil {
		return fmt.Errorf("making the client for the Node's condition: %w", err)
	}
	port.Ready()
	tick := time.NewTicker(skewPoll)
	defer tick.Stop()
	var asked time.Time
	linked := false
	for {
		now := m.linked()
		if now && (!linked || time.Since(asked) >= skewEvery) {
			if m.look(ctx, client) == nil { // else at the next look: the Node may not be registered yet
				asked = time.Now()
			} else {
				now = false
			}
		}
		linked = now
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (m *SkewModule) look(ctx context.Context, client kubernetes.Interface) error {
	answer, err := m.request(ctx, &topicpb.APIRequest{Method: http.MethodGet, Path: "/version"})
	if err != nil {
		return err
	}
	var apiserver struct {
		GitVersion string `json:"gitVersion"`
	}
	if answer.GetCode() != http.StatusOK || json.Unmarshal(answer.GetBody(), &apiserver) != nil {
		return errors.New("kube-apiserver does not report its version")
	}
	want := corev1.NodeCondition{Type: VersionSkew, Status: corev1.ConditionFalse, Reason: "Fits", Message: "the kubelet fits the cluster's kube-apiserver"}
	if err := version.KubeletFits(version.Kubernetes(), apiserver.GitVersion); err != nil {
		want.Status, want.Reason, want.Message = corev1.ConditionTrue, "DoesNotFit", err.Error()
	}
	return set(ctx, client, m.node, want)
}
