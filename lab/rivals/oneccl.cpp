// One rank of oneCCL: allreduce of each size that is asked for, under the stopwatch.  oneccl.py compiles and starts it.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <unistd.h>
#include <vector>

#include <oneapi/ccl.hpp>

// argv: the folder where ranks meet, the calls that are timed, and sizes in bytes.  mpiexec names rank and size.
int main(int count, char **words) {
    const int rank = std::atoi(std::getenv("PMI_RANK")), size = std::atoi(std::getenv("PMI_SIZE"));
    const std::string place = std::string(words[1]) + "/address", part = place + ".part";
    ccl::init();
    ccl::shared_ptr_class<ccl::kvs> store;
    ccl::kvs::address_type address;
    if (rank == 0) {
        store = ccl::create_main_kvs();
        address = store->get_address();
        std::ofstream(part, std::ios::binary).write(reinterpret_cast<char *>(address.data()), address.size());
        std::rename(part.c_str(), place.c_str());
    } else {
        while (access(place.c_str(), F_OK) != 0) usleep(1000);
        std::ifstream(place, std::ios::binary).read(reinterpret_cast<char *>(address.data()), address.size());
        store = ccl::create_kvs(address);
    }
    auto comm = ccl::create_communicator(size, rank, store);
    for (int i = 3; i < count; i++) {
        const size_t length = std::strtoul(words[i], nullptr, 10) / sizeof(float);
        std::vector<float> x(length, 1), y(length);
        std::vector<double> took;
        for (int call = -5; call < std::atoi(words[2]); call++) {
            ccl::barrier(comm).wait();
            const auto begun = std::chrono::steady_clock::now();
            ccl::allreduce(x.data(), y.data(), length, ccl::reduction::sum, comm).wait();
            const std::chrono::duration<double, std::micro> spent = std::chrono::steady_clock::now() - begun;
            if (call >= 0) took.push_back(spent.count());
        }
        if (y[0] != size || y[length - 1] != size) return 1;
        std::sort(took.begin(), took.end());
        if (rank == 0) std::printf("{\"bytes\": %s, \"us\": %f, \"p90\": %f}\n", words[i], took[took.size() / 2],
                                   took[took.size() * 9 / 10]);
    }
}
