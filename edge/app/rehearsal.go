package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/skerry-io/skerry/edge/internal/pods/images"
	"github.com/skerry-io/skerry/edge/internal/pods/rehearsal"
)

// RehearsalPath is where the running edgecore is asked for a rehearsal, on its unix socket.
const RehearsalPath = "/skerry/v1/rehearsal"

// rehearsalTimeout bounds the questions to the container runtime.
const rehearsalTimeout = 20 * time.Second

// Rehearse reports the pods that would not run if the device rebooted now, without a link.
func (a *App) Rehearse(ctx context.Context) (rehearsal.Report, error) {
	if a.kubelet.module == nil {
		return rehearsal.Report{}, errors.New("no kubelet runs here: modules.edged.enable is false")
	}
	ctx, cancel := context.WithTimeout(ctx, rehearsalTimeout)
	defer cancel()
	c := a.config.Modules.Edged
	var kubelet struct {
		Policy string `json:"imagePullCredentialsVerificationPolicy"`
	}
	_ = yaml.Unmarshal(c.Kubelet, &kubelet) // it was checked at the start
	return rehearsal.Read(ctx, rehearsal.Config{
		Node: a.node, Source: a.core.meta, Images: a.kubelet.module.Images(), Archive: c.SandboxImageArchive, RootDir: c.RootDir, Policy: kubelet.Policy, NodeIP: c.NodeIP, Root: "/",
		Sandbox: func(ctx context.Context) (string, error) { return images.SandboxImage(ctx, a.kubelet.module.Runtime()) },
	}), nil
}

// rehearsed is the rehearsal for the cloud, in the form that it asks for.
func (a *App) rehearsed(accept string) (body []byte, contentType string, err error) {
	r, err := a.Rehearse(context.Background())
	if err != nil {
		return nil, "", err
	}
	if accept == "text/plain" {
		return []byte(RehearsalText(r)), accept, nil
	}
	body, err = json.Marshal(r)
	return body, "application/json", err
}

func (a *App) handleRehearsal(w http.ResponseWriter, r *http.Request) {
	report, err := a.Rehearse(r.Context())
	if err == nil {
		err = answer(w, http.StatusOK, report)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
}

// RehearsalText is a rehearsal for people.
func RehearsalText(r rehearsal.Report) string {
	var out strings.Builder
	fmt.Fprintf(&out, "if %s rebooted now without a link: %d of %d pods would run\n", r.Node, r.Runs, len(r.Pods))
	for _, c := range r.Device {
		fmt.Fprintf(&out, "no pod: %s: %s\n  -> %s\n", c.Reason, c.Message, c.Action)
	}
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	for _, p := range r.Pods {
		for _, c := range p.Causes {
			fmt.Fprintf(w, "%s/%s\t%s\t%s\n\t\t-> %s\n", p.Namespace, p.Name, c.Reason, c.Message, c.Action)
		}
	}
	_ = w.Flush()
	return out.String()
}
