package arch_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const commitHook = "build/hooks/commit-msg"

// refusals are the complaints of the commit hook about subjects, in their order.
func refusals(t *testing.T, root string, subjects ...string) []string {
	t.Helper()
	hook := exec.Command(filepath.Join(root, commitHook), "-")
	hook.Stdin = strings.NewReader(strings.Join(subjects, "\n") + "\n")
	out, err := hook.CombinedOutput()
	text := strings.TrimSpace(string(out))
	if (err != nil) != (text != "") {
		t.Fatalf("%s: %v, %s", commitHook, err, text)
	}
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

func TestCommitHook(t *testing.T) {
	root := source(t).root
	for subject, want := range map[string]string{
		"link: Refuse frames above the bound":                           "",
		"app, cli: Report the end of a log; docs: Describe it":          "",
		"tests/e2e, drain: Reword comments":                             "",
		"edgecore status: Leave out an address":                         "",
		"kubernetes 1.36: Take the CSI spec":                            "",
		"docs, README: Don't list programs":                             "",
		"kube: Process reviews":                                         "",
		"names: Bring back the cache":                                   "",
		"store: Need no second read":                                    "",
		"Merge branch 'x'":                                              "",
		"Revert \"link: Refuse frames\"":                                "",
		"fixup! link: Refuse frames":                                    "",
		"x":                                                             "name the packages first",
		"Update dependencies":                                           "name the packages first",
		"link: refuse frames above the bound":                           "with a capital letter",
		"link: Refused frames above the bound":                          "not Added",
		"link: Refusing frames above the bound":                         "not Adding",
		"link: Refuses frames above the bound":                          "not Adds",
		"publish: A test keeps the size":                                `not with "A"`,
		"link: Refuse " + strings.Repeat("a", 100-len("link: Refuse ")): "",
		"link: Refuse " + strings.Repeat("a", 101-len("link: Refuse ")): "more than 100",
	} {
		got := strings.Join(refusals(t, root, subject), "\n")
		if (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", subject, got, want)
		}
		file := filepath.Join(t.TempDir(), "message")
		if err := os.WriteFile(file, []byte("# a comment\n\n"+subject+"\n\nthe body: any text, of any length\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := exec.Command(filepath.Join(root, commitHook), file).Run(); (err == nil) != (want == "") {
			t.Errorf("%q in a file: %v", subject, err)
		}
	}
}

// TestCommitSubjects: commits that are on this branch and not on main have subjects that the commit
// hook accepts. Those on main can't be reworded any more, so a test of them would stay red. A clone
// without main's history has no commits to check.
func TestCommitSubjects(t *testing.T) {
	root := source(t).root
	for _, main := range []string{"origin/main", "main"} {
		subjects, ok := unmerged(root, main)
		if !ok {
			continue
		}
		if len(subjects) > 0 {
			for _, complaint := range refusals(t, root, subjects...) {
				t.Errorf("%s (git commit --amend, or git rebase -i %s)", complaint, main)
			}
		}
		return
	}
}

// unmerged are the subjects of the commits above main. ok is false where main is not there, or has
// no commit in common with HEAD.
func unmerged(root, main string) (subjects []string, ok bool) {
	git := func(args ...string) (string, error) {
		out, err := exec.Command("git", append([]string{"-c", "safe.directory=*", "-C", root}, args...)...).Output()
		return strings.TrimSpace(string(out)), err
	}
	base, err := git("merge-base", main, "HEAD")
	if err != nil {
		return nil, false
	}
	log, err := git("log", "--no-merges", "--format=%s", base+"..HEAD")
	if err != nil || log == "" {
		return nil, err == nil
	}
	return strings.Split(log, "\n"), true
}

func TestCommitSubjects_unmerged(t *testing.T) {
	dir := t.TempDir()
	git := func(args ...string) {
		t.Helper()
		c := exec.Command("git", append([]string{"-C", dir, "-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "core.hooksPath=/dev/null"}, args...)...)
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v, %s", args, err, out)
		}
	}
	if _, ok := unmerged(dir, "main"); ok {
		t.Error("there is a main where there is no repository")
	}
	git("init", "-q", "-b", "main")
	git("commit", "-q", "--allow-empty", "-m", "old")
	if subjects, ok := unmerged(dir, "main"); !ok || len(subjects) > 0 {
		t.Errorf("on main: %q, %t", subjects, ok)
	}
	git("checkout", "-q", "-b", "work")
	git("commit", "-q", "--allow-empty", "-m", "link: Refuse frames\n\nbody")
	git("commit", "-q", "--allow-empty", "-m", "bad")
	subjects, ok := unmerged(dir, "main")
	if !ok || strings.Join(subjects, "|") != "bad|link: Refuse frames" {
		t.Errorf("above main: %q, %t", subjects, ok)
	}
	if _, ok := unmerged(dir, "origin/main"); ok {
		t.Error("there is an origin/main")
	}
}
