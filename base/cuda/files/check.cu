// Compiled and linked when the compilers are installed: they fit together, and the libraries are found.
__global__ void twice(int *number) { *number *= 2; }

int main() {
    int *number = nullptr;
    if (cudaMalloc(&number, sizeof *number) != cudaSuccess) return 1;
    twice<<<1, 1>>>(number);
    return cudaDeviceSynchronize() != cudaSuccess;
}
