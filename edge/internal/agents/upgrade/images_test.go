package upgrade_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/skerry-io/skerry/common/api/v1alpha1"
	"github.com/skerry-io/skerry/edge/internal/agents/upgrade"
)

// images is a container runtime.
type images struct {
	there  map[string]bool
	pulls  []string
	as     []upgrade.Credentials
	broken map[string]error
	kept   []string
}

func (i *images) Credentials(_ context.Context, from v1alpha1.SecretReference) (upgrade.Credentials, error) {
	if from.Name != "ours" {
		return nil, upgrade.ErrForeignSecret
	}
	return func(string) []upgrade.Credential { return []upgrade.Credential{{Username: "u", Password: "p"}} }, nil
}

func (i *images) Present(_ context.Context, image string) (bool, error) { return i.there[image], nil }

func (i *images) Pull(_ context.Context, image string, as upgrade.Credentials) error {
	i.pulls, i.as = append(i.pulls, image), append(i.as, as)
	if err := i.broken[image]; err != nil {
		return err
	}
	i.there[image] = true
	return nil
}

func (i *images) Keep(_ context.Context, image string) error {
	i.kept = append(i.kept, image)
	return nil
}

// Images are pulled one after the other; present ones are not pulled again, and a Secret that no
// pod here refers to is refused.
func TestImagesArePulledOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		spec := v1alpha1.NodeOperationSpec{Operation: v1alpha1.OperationImagePull, ImagePull: &v1alpha1.ImagePullSpec{
			Images: []string{"a:1", "b:1"}, PullSecret: &v1alpha1.SecretReference{Namespace: "shop", Name: "foreign"},
		}}
		if work, _ := s.do(operation(spec)); work.Reason != v1alpha1.OperationRefused || !strings.Contains(work.Message, "shop/foreign") {
			t.Errorf("a foreign Secret: %+v", work)
		}
		spec.ImagePull.PullSecret.Name = "ours"
		s.images.broken = map[string]error{"b:1": errors.New("the link is cut")}
		o := operation(spec)
		work, _ := s.do(o)
		if work.Ended != "" || work.Next.IsZero() || work.Images[1].Message != "the link is cut" {
			t.Errorf("one that can't be pulled: %+v", work)
		}
		reports, pauses := len(s.reports), []time.Duration{}
		for range 6 {
			work, _ = s.do(o)
			pauses = append(pauses, time.Until(work.Next))
		}
		if want := "[1m0s 2m0s 4m0s 5m0s 5m0s 5m0s]"; fmt.Sprint(pauses) != want || len(s.reports) != reports {
			t.Errorf("further tries are after %v, want %s, and make %d reports", pauses, want, len(s.reports)-reports)
		}
		s.images.broken = nil
		if work, _ = s.do(o); work.Reason != v1alpha1.OperationPulled {
			t.Errorf("%+v", work)
		}
		if got := fmt.Sprint(slices.Compact(s.images.pulls)); got != "[a:1 b:1]" || !slices.Contains(s.images.kept, "a:1") || s.images.as[0]("a:1")[0].Password != "p" {
			t.Errorf("pulled %s, kept %v, as %v", got, s.images.kept, s.images.as)
		}
	})
}
