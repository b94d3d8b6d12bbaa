package metamanager_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/skerry-io/skerry/edge/internal/core/metamanager"
	"github.com/skerry-io/skerry/edge/internal/core/object"
)

func TestWhatPassesThroughSpeaksTheCloudsVersions(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, metamanager.Config{})
		c.set(ref("configmaps", "default", "a"), configMap("x"))
		c.link()
		if _, _, err := e.List(t.Context(), selection("configmaps"), metamanager.ListOptions{FromReflector: true}); err != nil {
			t.Fatal(err)
		}
		o, err := e.Get(t.Context(), ref("configmaps", "default", "a"), metamanager.Caller{})
		if err != nil {
			t.Fatal(err)
		}
		if o.Version < 1e12 {
			t.Errorf("version %d could be kube-apiserver's", o.Version)
		}
		var sent []string
		c.answer = answerRecording(&sent)
		token := ""
		put := func(version string, body []byte) error {
			_, err := e.Write(t.Context(), metamanager.Write{
				Verb: "update", Ref: ref("configmaps", "default", "a"), Body: body, Path: "/api/v1/namespaces/default/configmaps/a",
				Caller: metamanager.Caller{BearerToken: token},
			})
			_ = version
			return err
		}
		obj, err := object.Decode(o)
		if err != nil {
			t.Fatal(err)
		}
		asJSON, err := object.JSON(obj)
		if err != nil {
			t.Fatal(err)
		}
		asProtobuf, err := object.Encode(obj)
		if err != nil {
			t.Fatal(err)
		}
		for name, body := range map[string][]byte{"JSON": asJSON, "protobuf": asProtobuf} {
			for _, token = range []string{"", "of a pod"} {
				sent = nil
				if err := put("", body); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				if diff := cmp.Diff([]string{o.CloudVersion}, sent); diff != "" {
					t.Errorf("%s: %s", name, diff)
				}
			}
		}
		c.set(ref("configmaps", "default", "a"), configMap("y"))
		synctest.Wait()
		token, sent = "of a pod", nil
		if err := put("", asJSON); err != nil || !slices.Equal(sent, []string{strconv.FormatUint(o.Version, 10)}) {
			t.Errorf("an old version named by a pod, whose token kube-apiserver judges: %v, sent %v", err, sent)
		}
		token = ""
		if err := put("", asJSON); !apierrors.IsConflict(err) {
			t.Errorf("an old version: %v, want a conflict", err)
		}
		c.cut()
		synctest.Wait()
		if err := put("", []byte(`{}`)); !apierrors.IsServiceUnavailable(err) || retryAfter(err) == 0 {
			t.Errorf("offline: %v, want 503 with Retry-After", err)
		}
	})
}

// Objects that are delivered without their status have a digest as their version: it is compared
// like any other, and never sent to kube-apiserver.
func TestVersionsThatAreDigests(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		c := newCloud(t)
		e := newEdge(t, c, metamanager.Config{})
		name := ref("configmaps", "default", "a")
		c.prefix = "content-"
		c.set(name, configMap("x"))
		c.link()
		get := func() object.Object {
			t.Helper()
			if _, _, err := e.List(t.Context(), selection("configmaps"), metamanager.ListOptions{FromReflector: true}); err != nil {
				t.Fatal(err)
			}
			o, err := e.Get(t.Context(), name, metamanager.Caller{})
			if err != nil {
				t.Fatal(err)
			}
			return o
		}
		o := get()
		if !strings.HasPrefix(o.CloudVersion, "content-") {
			t.Errorf("its version is %q", o.CloudVersion)
		}
		sent := c.sentObjects
		c.cut()
		synctest.Wait()
		c.link()
		synctest.Wait()
		if get().Version != o.Version || c.sentObjects != sent {
			t.Errorf("sent again: %d objects", c.sentObjects-sent)
		}
		obj, err := object.Decode(o)
		if err != nil {
			t.Fatal(err)
		}
		body, err := object.JSON(obj)
		if err != nil {
			t.Fatal(err)
		}
		var passed []string
		c.answer = answerRecording(&passed)
		_, err = e.Write(t.Context(), metamanager.Write{Verb: "update", Ref: name, Body: body, Path: "/api/v1/namespaces/default/configmaps/a"})
		if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "metadata.resourceVersion") || len(passed) > 0 {
			t.Errorf("an update: %v; passed on: %q", err, passed)
		}
	})
}
