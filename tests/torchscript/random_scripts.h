// Random scripts: modules with views, in-place operations, lists, branches and state, as TorchScript source.
#pragma once

#include <random>
#include <string>
#include <vector>

namespace gpipe::test {

// The source of a forward(self, x) for a tensor of 6 columns. It calls the submodules a, b and c, which are linear
// layers of 6 columns, and reads and writes the buffer `state` of shape [6]. The same seed gives the same source.
class RandomScript {
 public:
  explicit RandomScript(unsigned seed) : random_(seed) {}

  std::string source() {
    add("v0 = self.a.forward(x)");
    whole_ = {"x", "v0"};
    const int num_statements = pick(8, 20);
    for (int statement = 0; statement < num_statements; ++statement) add_statement();
    std::string result = "self.b.forward(" + pick(whole_) + ") + " + whole_.back();
    if (!views_.empty()) result += " + " + pick(views_) + ".flatten(1)";
    if (!halves_.empty()) result += " + torch.mean(" + pick(halves_) + ")";
    return "def forward(self, x):\n" + body_ + "  return " + result + "\n";
  }

 private:
  int pick(int low, int high) { return low + static_cast<int>(random_() % static_cast<unsigned>(high - low + 1)); }
  const std::string& pick(const std::vector<std::string>& names) {
    return names[static_cast<std::size_t>(pick(0, static_cast<int>(names.size()) - 1))];
  }
  // Not the input, which needs a gradient and must not be written to.
  const std::string& pick_own() {
    return whole_[static_cast<std::size_t>(pick(1, static_cast<int>(whole_.size()) - 1))];
  }

  void add(const std::string& statement) { body_ += "  " + statement + "\n"; }

  std::string make(const std::string& expression) {
    const std::string name = "v" + std::to_string(++num_made_);
    add(name + " = " + expression);
    return name;
  }

  void add_statement() {
    switch (pick(0, 17)) {
      case 0:
      case 1:
        whole_.push_back(make("self." + std::string(1, "abc"[pick(0, 2)]) + ".forward(" + pick(whole_) + ")"));
        break;
      case 2:
        whole_.push_back(make("torch." + pick(functions_) + "(" + pick(whole_) + ")"));
        break;
      case 3:
        whole_.push_back(make(pick(whole_) + " + " + pick(whole_)));
        break;
      case 4:
        whole_.push_back(make(pick(whole_) + " * 0.7"));
        break;
      case 5:
        views_.push_back(make(pick_own() + ".view([-1, 2, 3])"));
        break;
      case 6:
        halves_.push_back(
            make(pick_own() + "[:, " + std::to_string(pick(0, 3)) + ":" + std::to_string(pick(4, 6)) + "]"));
        break;
      case 7:
        add(pick_own() + ".add_(" + pick(whole_) + ")");
        break;
      case 8:
        whole_.push_back(make(pick_own() + ".mul_(0.9)"));
        break;
      case 9:
        add(pick_own() + "[:, " + std::to_string(pick(0, 5)) + "] = " + pick(whole_) + "[:, " +
            std::to_string(pick(0, 5)) + "]");
        break;
      case 10:
        if (!views_.empty()) add(pick(views_) + ".mul_(1.1)");
        break;
      case 11:
        if (!halves_.empty()) add(pick(halves_) + ".add_(0.3)");
        break;
      case 12:
        whole_.push_back(make("torch.dropout(" + pick(whole_) + ", 0.3, self.training)"));
        break;
      case 13:
        add("self.state.mul_(0.9).add_(torch.mean(" + pick(whole_) + ".detach(), [0]))");
        break;
      case 14:
        whole_.push_back(make(pick(whole_) + " + self.state.clone()"));
        break;
      case 15:
        add_list();
        break;
      case 16:
        add("if bool(torch.mean(" + pick(whole_) + ") > 0):");
        add("  " + pick_own() + ".add_(0.25)");
        break;
      default:
        whole_.push_back(make("torch.relu_(" + pick_own() + ")"));
    }
  }

  // A list that is begun at one place, and grows at others.
  void add_list() {
    if (!has_list_) {
      add("parts = [" + pick(whole_) + "]");
      has_list_ = true;
    } else if (pick(0, 1) == 0) {
      add("parts.append(" + pick(whole_) + ")");
    } else {
      whole_.push_back(make("torch.stack(parts).sum(0)"));
    }
  }

  std::mt19937 random_;
  std::string body_;
  std::vector<std::string> whole_;   // of 6 columns
  std::vector<std::string> views_;   // of 2 by 3
  std::vector<std::string> halves_;  // some columns
  const std::vector<std::string> functions_ = {"tanh", "sigmoid", "relu", "sin"};
  int num_made_ = 0;
  bool has_list_ = false;
};

}  // namespace gpipe::test
