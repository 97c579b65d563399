package inspect

// AskManifest is a Question of ID: a NetworkPolicy as the API server has it now.
const AskManifest = "manifest"

// Manifest answers AskManifest.
type Manifest struct {
	YAML string `json:"yaml"`
}
