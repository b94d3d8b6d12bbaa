package arch_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/skerry-io/skerry/tests/doccalls"
)

var (
	namedPage    = regexp.MustCompile(`docs/([\w/-]+\.md)(?:#([\w-]+))?`)
	namedSetting = regexp.MustCompile(`\bmodules((?:\.[a-z]\w*)+)`)
)

// TestRemediesNamePagesAndSettings: a page that an error, a remedy or an alert names is there, with
// the heading, and so is a setting of edgecore.yaml. Commands: TestRemediesNameCommands of each
// program.
func TestRemediesNamePagesAndSettings(t *testing.T) {
	root := source(t).root
	texts, err := doccalls.Texts(root)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(root, "edge/internal/setup/config/default.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var defaults struct{ Modules map[string]any }
	if err := yaml.Unmarshal(raw, &defaults); err != nil {
		t.Fatal(err)
	}
	page := func(name string) (string, bool) {
		raw, err := os.ReadFile(filepath.Join(root, "docs", name))
		return string(raw), err == nil
	}
	pages, settings := 0, 0
	for _, text := range texts {
		p, s, complaints := namedInText(text.Text, page, defaults.Modules)
		pages, settings = pages+p, settings+s
		for _, c := range complaints {
			t.Errorf("%s: %s", text.Place, c)
		}
	}
	if t.Logf("%d pages and %d settings are named", pages, settings); pages < 10 || settings < 20 {
		t.Error("are the texts found?")
	}
}

// namedInText are the pages and settings that a text names, and complaints about those that are not
// there.
func namedInText(text string, page func(string) (string, bool), modules map[string]any) (pages, settings int, complaints []string) {
	for _, m := range namedPage.FindAllStringSubmatch(text, -1) {
		pages++
		content, ok := page(m[1])
		switch {
		case !ok:
			complaints = append(complaints, "there is no page docs/"+m[1])
		case m[2] != "" && !anchors(content)[m[2]]:
			complaints = append(complaints, "docs/"+m[1]+" has no heading #"+m[2])
		}
	}
	for _, m := range namedSetting.FindAllStringSubmatch(text, -1) {
		settings++
		at := any(modules)
		for _, key := range strings.Split(m[1], ".")[1:] {
			object, ok := at.(map[string]any)
			if at != nil && !ok || ok && len(object) == 0 {
				break // a list, or an object of the kubelet's
			}
			if at, ok = object[key]; !ok {
				complaints = append(complaints, "there is no setting modules"+m[1])
				break
			}
		}
	}
	return pages, settings, complaints
}

func TestRemediesNamePagesAndSettings_findWhatTheyMust(t *testing.T) {
	page := func(name string) (string, bool) { return "## Two parts\n", name == "one.md" }
	modules := map[string]any{"edgeHub": map[string]any{"keepalive": "30s"}, "edged": map[string]any{"kubelet": map[string]any{}}}
	for text, want := range map[string]int{
		"see docs/one.md#two-parts": 0, "see docs/one.md#three": 1, "see docs/two.md": 1,
		"modules.edgeHub.keepalive: x": 0, "modules.edgeHub.keepAlive": 1, "modules.edged.kubelet.maxPods": 0, "modules.none": 1,
	} {
		if _, _, complaints := namedInText(text, page, modules); len(complaints) != want {
			t.Errorf("%q: %q", text, complaints)
		}
	}
}
