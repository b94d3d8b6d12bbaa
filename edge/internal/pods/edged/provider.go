package edged

import (
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	kubeletconfigv1 "k8s.io/kubelet/config/v1"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	"sigs.k8s.io/yaml"
)

// leaveOut has the kubelet start without those of its configured files that it can't use, and with
// which it would exit: they are needed for pulls and by its server, and not for the pods that are
// here. It returns a message for each file that it left out, by the reason of its event.
func leaveOut(s *options.KubeletServer) map[string]string {
	left := map[string]string{}
	if err := usableProvider(s.ImageCredentialProviderConfigPath, s.ImageCredentialProviderBinDir); err != nil {
		s.ImageCredentialProviderConfigPath, s.ImageCredentialProviderBinDir = "", ""
		left["CredentialProviderMissing"] = fmt.Sprintf("started the kubelet without its credential provider, with which it would exit (%v): images of its registries "+
			"can't be pulled; mend modules.edged.imageCredentialProviderConfig and imageCredentialProviderBinDir, then systemctl restart edgecore", err)
	}
	if s.TLSCertFile == "" && s.TLSPrivateKeyFile == "" {
		return left
	}
	if _, err := tls.LoadX509KeyPair(s.TLSCertFile, s.TLSPrivateKeyFile); err != nil {
		s.TLSCertFile, s.TLSPrivateKeyFile, s.ServerTLSBootstrap = "", "", true
		left["KubeletCertificateUnusable"] = fmt.Sprintf("started the kubelet with a certificate of the cluster instead of its configured one, with which it would exit (%v); "+
			"mend modules.edged.kubelet.tlsCertFile and tlsPrivateKeyFile, then systemctl restart edgecore", err)
	}
	return left
}

// usableProvider judges the files of the credential providers by the kubelet's rules
// (RegisterCredentialProviderPlugins): it exits if one is missing.
func usableProvider(config, dir string) error {
	if config == "" && dir == "" {
		return nil
	}
	if _, err := os.Stat(dir); err != nil {
		return err
	}
	files := []string{config}
	if info, err := os.Stat(config); err != nil {
		return err
	} else if info.IsDir() {
		entries, err := os.ReadDir(config)
		if err != nil {
			return err
		}
		files = nil
		for _, e := range entries {
			if slices.Contains([]string{".json", ".yaml", ".yml"}, filepath.Ext(e.Name())) && !e.IsDir() {
				files = append(files, filepath.Join(config, e.Name()))
			}
		}
		if len(files) == 0 {
			return fmt.Errorf("%s has no files", config)
		}
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var c kubeletconfigv1.CredentialProviderConfig // the fields that matter are the same in each version
		if err := yaml.Unmarshal(raw, &c); err != nil {
			return fmt.Errorf("reading %s: %w", file, err)
		}
		if len(c.Providers) == 0 {
			return fmt.Errorf("%s has no providers", file)
		}
		for _, p := range c.Providers {
			info, err := os.Stat(filepath.Join(dir, p.Name))
			if err != nil {
				return err
			}
			if info.IsDir() || info.Mode()&0o111 == 0 {
				return fmt.Errorf("%s is not executable", filepath.Join(dir, p.Name))
			}
		}
	}
	return nil
}
