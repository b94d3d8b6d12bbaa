package i18n

import (
	"testing"

	"k8s.io/kubectl/pkg/util/i18n"
)

func TestEnglish(t *testing.T) {
	for name, c := range map[string]struct {
		environment map[string]string
		want        bool
	}{
		"nothing set":                   {nil, true},
		"C":                             {map[string]string{"LANG": "C.UTF-8"}, true},
		"POSIX":                         {map[string]string{"LANG": "POSIX"}, true},
		"British":                       {map[string]string{"LANG": "en_GB.UTF-8"}, true},
		"German":                        {map[string]string{"LANG": "de_DE.UTF-8"}, false},
		"messages in English elsewhere": {map[string]string{"LANG": "de_DE.UTF-8", "LC_MESSAGES": "en_US.UTF-8"}, true},
		"all in Chinese":                {map[string]string{"LANG": "C", "LC_ALL": "zh_CN.UTF-8"}, false},
		"a language that begins alike":  {map[string]string{"LANG": "enm.UTF-8"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := english(func(v string) string { return c.environment[v] }); got != c.want {
				t.Errorf("english = %v, want %v", got, c.want)
			}
		})
	}
}

// Other languages are kubectl's, as without this package.
func TestOtherLanguagesStay(t *testing.T) {
	const text = "Approve a certificate signing request"
	t.Setenv("LC_ALL", "C")
	if err := load(); err != nil {
		t.Fatal(err)
	}
	if got := i18n.T(text); got != text {
		t.Errorf("in English: %q", got)
	}
	t.Setenv("LC_ALL", "de_DE.UTF-8")
	if err := load(); err != nil {
		t.Fatal(err)
	}
	if got := i18n.T(text); got == text {
		t.Error("no German although it is asked for")
	}
}
