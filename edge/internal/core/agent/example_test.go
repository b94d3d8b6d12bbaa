package agent_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/skerry-io/skerry/beehive"
	"github.com/skerry-io/skerry/beehive/message"
	"github.com/skerry-io/skerry/edge/internal/core/agent"
	"github.com/skerry-io/skerry/edge/internal/core/agent/agenttest"
	"github.com/skerry-io/skerry/edge/internal/core/linkstate"
)

// display is the driver: it makes the device as it should be. A real one is a package in
// edge/internal/kernel.
type display interface{ Show(text string) error }

// bannerText is the core: from the state to the desired text, without a clock, a lock or an error.
func bannerText(m *corev1.ConfigMap, linked bool) string {
	if m == nil {
		return ""
	}
	if !linked {
		return m.Data["text"] + " (offline)"
	}
	return m.Data["text"]
}

// newBanner is the agent: it shows the text of a ConfigMap on the device's display.
func newBanner(nodeName string, api *rest.Config, d display) *agent.Module {
	return agent.New(agent.Config{Name: "banner", NodeName: nodeName, API: api,
		Start: func(_ context.Context, r *agent.Run) (agent.Sync, error) {
			texts, err := agent.Watch(r, corev1.SchemeGroupVersion.WithResource("configmaps"), &corev1.ConfigMap{},
				agent.Selection{Namespace: "default", Fields: "metadata.name=banner"})
			if err != nil {
				return nil, err
			}
			shown := "" // of this run: a new one shows it again
			return func(context.Context) (time.Duration, error) {
				m, _ := texts.Get("default/banner")
				want := bannerText(m, r.Link().Up)
				if want == shown {
					return 0, nil
				}
				if err := d.Show(want); err != nil {
					return 0, fmt.Errorf("showing the banner: %w", err)
				}
				shown = want
				r.Event(corev1.EventTypeNormal, "BannerShown", "The display shows %q", want)
				return 0, nil
			}, nil
		}})
}

// lines is a display that passes on its text.
type lines chan string

func (l lines) Show(text string) error { l <- text; return nil }

func Example() {
	api, shown, t := agenttest.NewAPI(), make(lines), &testing.T{}
	text := &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "banner"}, Data: map[string]string{"text": "Line 3"},
	}
	api.Put(t, "configmaps", text)
	// In edgecore this is a line of a wing's constructor in edge/app.
	runner, err := beehive.NewRunner(beehive.Config{}, []beehive.Entry{{
		Module: newBanner("edge1", api.Config(), shown), Groups: []message.Group{linkstate.Agents},
		Restart: beehive.OnFailure(beehive.Backoff{}),
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- runner.Run(ctx) }()
	fmt.Println(<-shown)
	text.Data["text"] = "Line 3: maintenance at 14:00"
	api.Put(t, "configmaps", text)
	fmt.Println(<-shown)
	stop()
	fmt.Println(<-ended)
	// Output:
	// Line 3 (offline)
	// Line 3: maintenance at 14:00 (offline)
	// <nil>
}
